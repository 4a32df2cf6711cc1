"""Gradients as DistributedDataParallel keeps and averages them with gradient_as_bucket_view."""

import torch
import torch.distributed as dist

_BUCKET_BYTES = 25 * 1024 * 1024  # DDP's default


class GradientBuckets:
    """Makes the gradients of `parameters` views of buckets, with the values given."""

    def __init__(self, parameters, values):
        self._buckets = []
        pending = []
        for parameter, value in zip(parameters, values, strict=True):
            pending.append((parameter, value))
            if sum(each.nbytes for _, each in pending) >= _BUCKET_BYTES:
                self._make(pending)
                pending = []
        if pending:
            self._make(pending)

    def _make(self, members):
        bucket = torch.cat([value.flatten() for _, value in members])
        offset = 0
        for parameter, value in members:
            parameter.grad = bucket[offset : offset + value.numel()].view(value.shape)
            offset += value.numel()
        self._buckets.append(bucket)

    def average(self):
        """As DDP: each bucket divided first, then summed over all ranks."""
        world_size = dist.get_world_size()
        pending = []
        for bucket in self._buckets:
            bucket.div_(world_size)
            pending.append(dist.all_reduce(bucket, async_op=True))
        for work in pending:
            work.wait()
