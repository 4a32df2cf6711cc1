"""A peer: a wrapper of the model that reduces gradients in backward, and an optimizer of the model.

A round is backward() and step(). Backward itself computes nothing (given_gradients.py). Driven as
round_protocol.py says.
"""

import argparse

import bench_models
import fused_adam
import gloo_group
import round_protocol
import torch
from given_gradients import Model
from torch.nn.parallel import DistributedDataParallel


class _Averaged:
    """DistributedDataParallel: every rank gets the averages of all gradients."""

    def __init__(self, model, optimizer):
        self._model = model
        self._parameters = list(model.parameters())
        # Buckets of four times the size were no faster.
        self._wrapper = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._optimizer = fused_adam.OPTIMIZERS[optimizer](self._parameters)
        # Twice: after the first time DDP lays its buckets out anew.
        for _ in range(2):
            self._wrapper().backward()
            self.after_round()

    def step(self):
        self._wrapper().backward()
        self._optimizer.step()

    def after_round(self):
        """The next gradients are what lies in DDP's buckets, so that it copies nothing there. The averages
        average to themselves."""
        self._model.gradients = [parameter.grad for parameter in self._parameters]
        self._model.zero_grad(set_to_none=True)


class _ReducedToOwner:
    """fairscale's ShardedDataParallel: the average of a gradient goes only to the rank that needs it."""

    def __init__(self, model, optimizer):
        from fairscale.nn.data_parallel import ShardedDataParallel

        self._model = model
        self._optimizer = fused_adam.OPTIMIZERS[optimizer](list(model.parameters()))
        # Without buckets of its own it reduces gradients where they are.
        self._wrapper = ShardedDataParallel(model, self._optimizer, reduce_buffer_size=0)

    def step(self):
        self._wrapper().backward()
        self._optimizer.step()

    def after_round(self):
        """Sums have taken the gradients' place."""
        self._wrapper.zero_grad(set_to_none=True)
        self._model.refill_gradients()


_WRAPPERS = {"ddp": _Averaged, "sharded_ddp": _ReducedToOwner}


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--wrapper", choices=sorted(_WRAPPERS), required=True)
    parser.add_argument("--optimizer", choices=sorted(fused_adam.OPTIMIZERS), required=True,
                        help="with sharded_ddp: oss")
    parser.add_argument("--layers", type=int, default=20)
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    model = Model(arguments.layers, torch.float32, 1 + arguments.rank)
    wrapped = _WRAPPERS[arguments.wrapper](model, arguments.optimizer)
    driver.serve(
        wrapped.step,
        lambda: bench_models.check(list(model.parameters())),
        {"torch": torch.__version__},
        wrapped.after_round,
    )


if __name__ == "__main__":
    main()
