"""A rule of torch.optim in one process, in one of the forms that torch has it in.

A round is one step, with gradients that are there already. Driven as round_protocol.py says.
"""

import argparse

import bench_models
import round_protocol
import torch

RULES = {
    "adafactor": torch.optim.Adafactor,
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "asgd": torch.optim.ASGD,
    "muon": torch.optim.Muon,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "sgd": torch.optim.SGD,
    "sparse_adam": torch.optim.SparseAdam,
}
# What torch takes for a first eps of None, which it cannot compile.
OPTIONS = {"adafactor": {"eps": (torch.finfo(torch.float32).eps, 1e-3)}}
# Has no form but the loop, and no option that says so.
LOOP_ONLY = ("sparse_adam",)
FORMS = ("fused", "foreach", "loop", "compiled")


def make_muon_step(form, options, parameters):
    """Muon takes matrices; the others have AdamW, as its users have it."""
    optimizers = [
        torch.optim.Muon([each for each in parameters if each.ndim == 2], **options),
        torch.optim.AdamW([each for each in parameters if each.ndim != 2], **options),
    ]

    def step():
        for optimizer in optimizers:
            optimizer.step()

    return torch.compile(step, fullgraph=False) if form == "compiled" else step


def make_step(rule, form, options, parameters):
    """A function that steps once."""
    if rule == "muon":
        return make_muon_step(form, options, parameters)
    options = {**OPTIONS.get(rule, {}), **options}
    if rule in LOOP_ONLY:
        if form != "loop":
            raise ValueError("torch has no form %s of %s; use --form=loop" % (form, rule))
    elif form == "fused":
        options = {**options, "fused": True}
    else:
        # What is compiled is the form of many tensors at once, as torch's documents advise.
        options = {**options, "foreach": form != "loop"}
    optimizer = RULES[rule](parameters, **options)
    return torch.compile(optimizer.step, fullgraph=False) if form == "compiled" else optimizer.step


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", choices=sorted(RULES), required=True)
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument(
        "--sparse_every", type=int, default=0, help="the matrices only, with one row in so many"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parameters = list(bench_models.linear_layers(arguments.layers).parameters())
    every = arguments.sparse_every
    if every:
        parameters = [each for each in parameters if each.ndim == 2]
    for parameter, gradient in zip(parameters, bench_models.gradients_for(parameters, 1)):
        parameter.grad = bench_models.rows_of(gradient, every) if every else gradient
    options = {"lr": arguments.lr}
    if arguments.momentum is not None:
        options["momentum"] = arguments.momentum
    step = make_step(arguments.rule, arguments.form, options, parameters)
    driver.serve(step, lambda: bench_models.check(parameters), {"torch": torch.__version__})


if __name__ == "__main__":
    main()
