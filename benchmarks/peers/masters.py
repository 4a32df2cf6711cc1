"""Float32 masters of 16-bit parameters, as mixed-precision trainers keep them beside any optimizer."""

import torch


class Masters:
    """The optimizer that `make` makes of float32 copies of the parameters; step() goes by way of those."""

    def __init__(self, parameters, make):
        self._parameters = parameters
        self._masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in parameters]
        for master in self._masters:
            master.grad = torch.empty_like(master)
        self._optimizer = make(self._masters)

    @torch.no_grad()
    def step(self):
        torch._foreach_copy_(
            [master.grad for master in self._masters], [parameter.grad for parameter in self._parameters]
        )
        self._optimizer.step()
        torch._foreach_copy_(self._parameters, self._masters)
