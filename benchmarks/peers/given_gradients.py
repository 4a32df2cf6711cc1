"""A model whose backward computes nothing: it hands every parameter a gradient that is there.

So what takes time in backward is what a wrapper of the model does with the gradients.
"""

import bench_models
import torch


class _GivenGradients(torch.autograd.Function):
    """Of the loss that has the gradients given."""

    @staticmethod
    def forward(ctx, gradients, *parameters):
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx, _):
        # Autograd takes over a tensor that nobody else has; it copies any other.
        return None, *(gradient.detach() for gradient in ctx.gradients)


class Model(torch.nn.Module):
    """Layers whose forward is a loss with the gradients given; `gradients` may be replaced."""

    def __init__(self, layers, dtype, seed):
        super().__init__()
        self.layers = bench_models.linear_layers(layers).to(dtype)
        self._seed = seed
        self.gradients = bench_models.gradients_for(list(self.layers.parameters()), seed)

    def refill_gradients(self):
        """Gives them their first values again."""
        bench_models.fill_gradients(self.gradients, self._seed)

    def forward(self):
        return _GivenGradients.apply(self.gradients, *self.layers.parameters())
