"""Small trainings, each with a feature of PyTorch or a habit of scripts that a watch must not disturb.

A program gets `say(name, value)` for what a user would look at; tensors are compared by their bits.
"""

from __future__ import annotations

import copy
import cProfile
import gc
import io
import os
import pickle
import pstats
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

PROGRAMS: dict[str, Any] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def since(owner, name):
    """Mark a program of a feature that older versions of torch lack: there it is left out."""
    return program if hasattr(owner, name) else lambda function: function


def net(*middle):
    return nn.Sequential(nn.Linear(4, 6), *(middle or (nn.Tanh(),)), nn.Linear(6, 3))


def train(say, model, optimizer=None, batch=None, loss=None, steps=2, forward=None, after_backward=None):
    """Train a model, and say its losses, gradients, parameters, buffers and moments."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        given = torch.randn(5, 4) if batch is None else batch()
        optimizer.zero_grad()
        value = (loss or mean_square)((forward or model)(given))
        value.backward()
        if after_backward is not None:
            after_backward(model)
        optimizer.step()
        say(f"loss {step}", value)
    say_model(say, model, optimizer)


def say_model(say, model, optimizer):
    for name, parameter in model.named_parameters():
        say(name, parameter)
        say(f"{name}.grad", parameter.grad)
        for key, moment in sorted(optimizer.state.get(parameter, {}).items()):
            say(f"{name}.{key}", moment)
    for name, buffer in model.named_buffers():
        say(name, buffer)


def mean_square(result):
    return result.square().mean()


HOOKS = {
    "pre-hook": lambda model, optimizer, hook: model[1].register_forward_pre_hook(hook),
    "backward hook": lambda model, optimizer, hook: model[1].register_full_backward_hook(hook),
    "tensor hook": lambda model, optimizer, hook: model[0].weight.register_hook(hook),
    "gradient hook": lambda model, optimizer, hook: model[0].weight.register_post_accumulate_grad_hook(hook),
    "step pre-hook": lambda model, optimizer, hook: optimizer.register_step_pre_hook(hook),
    "step hook": lambda model, optimizer, hook: optimizer.register_step_post_hook(hook),
}


# -- models ----------------------------------------------------------------------------------------


@program
def dropout(say):
    train(say, net(nn.Dropout(0.4)))


@program
def batch_norm(say):
    train(say, net(nn.BatchNorm1d(6)))


@program
def convolution(say):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    train(say, model, batch=lambda: torch.randn(3, 1, 4, 4))


@program
def lstm(say):
    model = nn.LSTM(4, 5, batch_first=True)
    train(say, model, batch=lambda: torch.randn(2, 3, 4), forward=lambda x: model(x)[0])


@program
def packed_sequence(say):
    model = nn.GRU(4, 5)

    def forward(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2])
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0]

    train(say, model, batch=lambda: torch.randn(3, 2, 4), forward=forward)


@program
def transformer(say):
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    train(say, model, torch.optim.AdamW(model.parameters()), batch=lambda: torch.randn(2, 3, 4))


@program
def sparse_embedding(say):
    model = nn.Embedding(7, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    train(say, model, optimizer, batch=lambda: torch.randint(0, 7, (5,)))


@program
def lazy_modules(say):
    model = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
    model(torch.randn(5, 4))
    train(say, model)


@program
def nested_tensor(say):
    model = nn.Linear(4, 3)

    def forward(x):
        nested = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
        return model(nested).values()

    train(say, model, forward=forward)


@program
def complex_parameters(say):
    weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
    model = nn.ParameterList([weight])
    train(say, model, forward=lambda x: (x.to(torch.complex64) @ weight).abs())


@program
def module_in_keyword_arguments(say):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x, *, scale, options=None):
            return self.inner(x) * scale * len(options["list"])

    model = Model()
    train(say, model, forward=lambda x: model(x, scale=x.mean(), options={"list": [1, 2]}))


# -- optimizers and loops --------------------------------------------------------------------------


@program
def adam_foreach(say):
    model = net()
    train(say, model, torch.optim.Adam(model.parameters(), amsgrad=True, foreach=True))


@program
def fused_adamw(say):
    model = net()
    train(say, model, torch.optim.AdamW(model.parameters(), fused=True))


@program
def lbfgs(say):
    model, x = net(), torch.randn(5, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        value = mean_square(model(x))
        value.backward()
        return value

    say("loss", optimizer.step(closure))
    say_model(say, model, optimizer)


@program
def adversarial(say):
    maker, judge = net(), nn.Linear(3, 1)
    makers, judges = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (maker, judge))
    for _ in range(2):
        made = maker(torch.randn(5, 4))
        judges.zero_grad()
        (judge(made.detach()).mean() - judge(torch.randn(5, 3)).mean()).backward()
        judges.step()
        makers.zero_grad()
        (-judge(made).mean()).backward()
        makers.step()
    say_model(say, maker, makers)
    say_model(say, judge, judges)


@program
def accumulated_gradients(say):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            (mean_square(model(torch.randn(5, 4))) / 3).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    say_model(say, model, optimizer)


@program
def clipped_gradients(say):
    train(say, net(), after_backward=lambda m: say("norm", nn.utils.clip_grad_norm_(m.parameters(), 0.1)))


@program
def learning_rates(say):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=4)
    for _ in range(3):
        train(say, model, optimizer, steps=1)
        rates.step()
        say("rate", rates.get_last_lr())


@program
def averaged_model(say):
    model = net()
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for _ in range(2):
        train(say, model, steps=1)
        averaged.update_parameters(model)
    for name, each in averaged.named_parameters():
        say(f"average {name}", each)


@program
def loop_without_optimizer(say):
    weight = torch.randn(4, 3, requires_grad=True)
    for _ in range(2):
        mean_square(torch.randn(5, 4) @ weight).backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None
    say("weight", weight)


@program
def functional_loop(say):
    weight = torch.randn(4, 3)
    for _ in range(2):
        weight.requires_grad_()
        (gradient,) = torch.autograd.grad(mean_square(torch.randn(5, 4) @ weight), weight)
        weight = (weight - 0.1 * gradient).detach()
    say("weight", weight)


@program
def optimizer_hooks(say):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(say, model, optimizer)
    say("seen", seen)


@program
def optimizer_in_backward(say):
    model = net()
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        mean_square(model(torch.randn(5, 4))).backward()
    for name, each in model.named_parameters():
        say(name, each)


@program
def own_optimizer(say):
    class Sign(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for each in group["params"]:
                    each.add_(each.grad.sign(), alpha=-group["lr"])

    model = net()
    train(say, model, Sign(model.parameters()))


# -- precision -------------------------------------------------------------------------------------


@program
def autocast(say):
    model = net()

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    train(say, model, forward=forward)


@program
def gradient_scaler(say):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            value = mean_square(model(torch.randn(5, 4)))
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        say(f"scale {step}", scaler.get_scale())
    say_model(say, model, optimizer)


@program
def default_dtype(say):
    torch.set_default_dtype(torch.float64)
    train(say, net())
    say("dtype", str(torch.get_default_dtype()))


@program
def nan_that_is_handled(say):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(5, 4) / (0.0 if step == 1 else 1.0)
        value = mean_square(model(x))
        if value.isfinite():
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        say("loss", value)
    say_model(say, model, optimizer)


# -- hooks and modes -------------------------------------------------------------------------------


@program
def tensor_hooks(say):
    model = net()

    def forward(x):
        hidden = model[0](x)
        hidden.register_hook(lambda gradient: gradient * 2)
        return model[2](model[1](hidden))

    train(say, model, forward=forward)


@program
def forward_hooks(say):
    model, calls = net(), []
    model[0].register_forward_hook(lambda module, args, result: result * 1.5)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.register_forward_hook(lambda *_: calls.append(len(_)))
    train(say, model)
    say("calls", calls)


@program
def backward_hooks(say):
    model, calls = net(), []
    model[1].register_full_backward_hook(lambda module, given, result: (given[0] * 0.5,))
    model[0].register_full_backward_pre_hook(lambda module, gradient: calls.append(gradient[0].sum().item()))
    train(say, model)
    say("calls", calls)


@program
def global_hooks(say):
    calls = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: calls.append(type(module).__name__)
    )
    train(say, net())
    handle.remove()
    say("calls", calls)


@program
def hook_that_raises(say):
    model = net()

    def hook(*_):
        raise ValueError("from a hook")

    model[1].register_forward_hook(hook)
    train(say, model)


@program
def hook_that_exits(say):
    model = net()
    model[1].register_full_backward_hook(lambda *_: sys.exit(7))
    train(say, model)


@program
def hooks_that_end_the_step(say):
    """Each hook raises what a script raises to end: the script catches it, and trains on."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for error in (SystemExit, KeyboardInterrupt):
        for name, register in HOOKS.items():

            def leave(*_, error=error):
                raise error("end")

            handle = register(model, optimizer, leave)
            try:
                train(say, model, optimizer, steps=1)
            except BaseException as caught:  # noqa: BLE001
                say(name, [type(caught).__name__, str(caught)])
            handle.remove()
    train(say, model, optimizer)


@program
def own_dispatch_mode(say):
    class Counting(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    model, x = net(), torch.randn(5, 4)
    with Counting() as counting:
        train(say, model, batch=lambda: x)
    # No dispatch mode sees the marks of the profiler under a watch.
    say("names", [each for each in counting.names if not each.startswith("profiler.")])


@program
def own_function_mode(say):
    class Counting(TorchFunctionMode):
        names = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.names.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    with Counting() as counting:
        train(say, net())
    say("names", counting.names)


@program
def tensor_subclass(say):
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            result = super().__torch_function__(function, types, args, kwargs or {})
            return result.as_subclass(cls) if isinstance(result, torch.Tensor) else result

    types = []
    model = net()

    def forward(x):
        result = model(x.as_subclass(Tagged))
        types.append(type(result).__name__)
        return result

    train(say, model, forward=forward)
    say("types", types)


@program
def saved_tensor_hooks(say):
    sizes = []

    def forward(x):
        def pack(t):
            sizes.append(t.numel())
            return t.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return model(x)

    model = net()
    train(say, model, forward=forward)
    say("sizes", sizes)


@program
def saved_on_cpu(say):
    model = net()

    def forward(x):
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    train(say, model, forward=forward)


@program
def profiler(say):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(say, net())
    say("events", sorted({(e.key, e.count) for e in profile.key_averages() if e.key.startswith("aten::mm")}))


@program
def anomaly_mode(say):
    with torch.autograd.detect_anomaly(check_nan=True):
        train(say, net())


@program
def anomaly_that_is_found(say):
    with torch.autograd.detect_anomaly(check_nan=True):
        train(say, net(), loss=lambda result: (result * 0).sqrt().sum() * 0)


@program
def deterministic_algorithms(say):
    torch.use_deterministic_algorithms(True)
    train(say, net())
    say("empty", torch.empty(3))


# -- autograd --------------------------------------------------------------------------------------


@program
def own_function(say):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            return gradient * 2 + 0 * x

    model = net()
    train(say, model, forward=lambda x: Double.apply(model(x)))


@since(torch.autograd.function.FunctionCtx, "input_grad_buffers")
def gradient_added_to_another(say):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight):
            context.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(context, gradient):
            x, weight = context.saved_tensors
            # The sum of the gradients so far, if the engine lets the function add to it.
            total, _ = context.input_grad_buffers
            own = gradient @ weight.T
            if total is not None:
                total += own
                own = None
            return own, x.T @ gradient

    model, weight = net(), torch.randn(3, 3)

    def forward(x):
        result = model(x)
        return Product.apply(result, weight) + result.cos()

    train(say, model, forward=forward)


@since(torch.autograd.function.FunctionCtx, "set_output_grad_dtype")
def gradient_of_another_dtype(say):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.set_output_grad_dtype(torch.float32)
            return x.half()

        @staticmethod
        def backward(context, gradient):
            say("dtype", str(gradient.dtype))
            return gradient / 3

    model = net()
    train(say, model, forward=lambda x: Half.apply(model(x)))


@since(torch.autograd.graph, "node_creation_hook")
def hook_of_new_nodes(say):
    names = []
    with torch.autograd.graph.node_creation_hook(lambda node: names.append(node.name())):
        train(say, net(nn.Tanh(), nn.BatchNorm1d(6)))
    say("nodes", names)


@since(torch.autograd.graph, "queue_callback")
def call_after_backward(say):
    model = net()

    def hook(gradient):
        torch.autograd.graph.queue_callback(lambda: say("sum", gradient.sum()))

    model[0].weight.register_hook(hook)
    train(say, model)


@program
def gradient_penalty(say):
    model = net()

    def forward(x):
        x.requires_grad_()
        result = model(x)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return torch.cat([result.flatten(), gradient.flatten()])

    train(say, model, forward=forward)


@program
def checkpointed(say):
    model = net(nn.Dropout(0.3))
    train(say, model, forward=lambda x: checkpoint(model, x, use_reentrant=False))


@program
def checkpointed_reentrant(say):
    model = net(nn.Dropout(0.3))
    train(say, model, forward=lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True))


@program
def forward_mode(say):
    model = net()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(5, 4), torch.ones(5, 4))
        say("tangent", torch.autograd.forward_ad.unpack_dual(model(dual)).tangent)
    train(say, model)


@program
def retained_graph(say):
    model = net()
    value = mean_square(model(torch.randn(5, 4)))
    value.backward(retain_graph=True)
    value.backward()
    for name, each in model.named_parameters():
        say(name, each.grad)


@program
def graph_used_twice(say):
    model = net()
    value = mean_square(model(torch.randn(5, 4)))
    value.backward()
    value.backward()


@program
def checked_gradients(say):
    model = net().double()
    say("check", torch.autograd.gradcheck(model, torch.randn(2, 4, dtype=torch.float64, requires_grad=True)))


@program
def undefined_gradient(say):
    model = net()
    value = model(torch.randn(5, 4)).detach()
    value.mean().backward()


# -- transforms ------------------------------------------------------------------------------------


@program
def called_with_other_parameters(say):
    model = net()
    other = {name: each.detach() * 2 for name, each in model.named_parameters()}
    say("other", functional_call(model, other, (torch.randn(5, 4),)))
    train(say, model)


@program
def gradients_by_sample(say):
    model = net()
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(parameters, x):
        return mean_square(functional_call(model, parameters, (x,)))

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(5, 4))
    for name, each in found.items():
        say(name, each)
    train(say, model)


@program
def second_derivatives(say):
    model = net()
    x = torch.randn(4)
    say("jacobian", jacrev(model)(x))
    say("hessian", hessian(lambda x: mean_square(model(x)))(x))
    say("product", jvp(model, (x,), (torch.ones(4),)))
    train(say, model)


@program
def ensemble(say):
    models = [net() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def forward(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    vmap(forward, in_dims=(0, 0, None))(parameters, buffers, torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    for name, each in parameters.items():
        say(name, each)


# -- export and copies -----------------------------------------------------------------------------


@program
def exported(say):
    model = net()
    train(say, model, steps=1)
    x = torch.randn(5, 4)
    made = torch.export.export(model, (x,))
    say("nodes", [str(node.target) for node in made.graph.nodes])
    say("result", made.module()(x))
    train(say, model, steps=1)


@program
def traced(say):
    model = net()
    made = torch.jit.trace(model, torch.randn(5, 4))
    say("graph", str(made.graph).count("aten::"))
    train(say, made)


@program
def scripted(say):
    made = torch.jit.script(net())
    say("code", made.code)
    train(say, made)


@program
def symbolic_trace(say):
    made = torch.fx.symbolic_trace(net())
    say("code", made.code)
    train(say, made)


@program
def deep_copies(say):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(say, model, optimizer, steps=1)
    again = copy.deepcopy(model)
    other = torch.optim.Adam(again.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(say, again, other, steps=1)
    train(say, pickle.loads(pickle.dumps(model)), steps=1)


@program
def saved_checkpoint(say):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(say, model, optimizer, steps=1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    read = torch.load(file)
    again = net()
    again.load_state_dict(read["model"])
    other = torch.optim.Adam(again.parameters())
    other.load_state_dict(read["optimizer"])
    train(say, again, other, steps=1)


@program
def whole_model_saved(say):
    model = nn.Sequential(nn.Linear(4, 3))
    train(say, model, steps=1)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    say("hooks", [len(again._forward_hooks), len(again._forward_pre_hooks)])
    train(say, again, steps=1)


# -- writes and memory -----------------------------------------------------------------------------


@program
def weights_written_in_place(say):
    model = net()
    for _ in range(2):
        train(say, model, steps=1)
        with torch.no_grad():
            model[0].weight.div_(model[0].weight.norm(dim=1, keepdim=True))
            model[2].weight.data.clamp_(-0.2, 0.2)
    say_model(say, model, torch.optim.SGD(model.parameters()))


@program
def numpy_writes(say):
    model = net()
    train(say, model, steps=1)
    model[0].weight.detach().numpy()[0] = 0.25
    train(say, model, steps=1)


@program
def storage_freed_and_filled(say):
    model = nn.Linear(4, 3)
    storage = model.weight.untyped_storage()
    kept = model.weight.detach().clone()
    storage.resize_(0)
    storage.resize_(kept.numel() * 4)
    with torch.no_grad():
        model.weight.copy_(kept)
    train(say, model)


@program
def shared_weights(say):
    model = net()
    head = nn.Linear(6, 4)
    head.weight = nn.Parameter(model[0].weight.t().detach().t())
    model[0].weight = head.weight if head.weight.shape == model[0].weight.shape else model[0].weight
    train(say, model)


@program
def parametrized(say):
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
    )
    train(say, model)


@program
def pruned(say):
    model = net()
    nn.utils.prune.l1_unstructured(model[0], "weight", amount=0.5)
    train(say, model)


# -- random numbers --------------------------------------------------------------------------------


@program
def own_generators(say):
    generator = torch.Generator().manual_seed(3)
    train(say, net(), batch=lambda: torch.randn(5, 4, generator=generator) + float(np.random.rand()))
    say("state", generator.get_state())
    say("python", random.random())


@program
def forked_random_state(say):
    model = net(nn.Dropout(0.5))
    with torch.random.fork_rng():
        torch.manual_seed(9)
        train(say, model)
    say("after", torch.rand(2))


@program
def random_modules(say):
    model = net(nn.RReLU(), nn.AlphaDropout(0.2))
    train(say, model, loss=lambda result: (result * torch.bernoulli(torch.rand(5, 3))).sum())


# -- habits of scripts -----------------------------------------------------------------------------


@program
def evaluation(say):
    model = net(nn.BatchNorm1d(6))
    for _ in range(2):
        train(say, model, steps=1)
        model.eval()
        with torch.inference_mode():
            say("evaluated", model(torch.ones(5, 4)).clone())
        with torch.no_grad():
            say("evaluated again", model(torch.ones(5, 4)))
        model.train()


@program
def threads(say):
    models = [net() for _ in range(2)]
    batches = [torch.randn(5, 4) for _ in models]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]

    def work(model, optimizer, x):
        mean_square(model(x)).backward()
        optimizer.step()

    for arguments in zip(models, optimizers, batches, strict=True):
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        thread.join()
    for model, optimizer in zip(models, optimizers, strict=True):
        say_model(say, model, optimizer)


@program
def threads_at_once(say):
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.nn.Parameter(torch.randn(4, 3, generator=generator))
        optimizer = torch.optim.Adam([weight])
        for _ in range(5):
            optimizer.zero_grad()
            mean_square(torch.randn(5, 4, generator=generator) @ weight).backward()
            optimizer.step()
        return weight.detach()

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(work, seed) for seed in range(2)]
        train(say, net())
        say("weights", [each.result() for each in found])


@program
def loader(say):
    data = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, shuffle=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (x,) in data:
            train(say, model, optimizer, steps=1, batch=lambda x=x: x)


@program
def loader_with_workers(say):
    data = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, num_workers=1)
    model = net()
    for (x,) in data:
        train(say, model, steps=1, batch=lambda x=x: x)


@program
def forked_process(say):
    model = net()
    train(say, model, steps=1)
    process = os.fork()
    if process == 0:
        try:
            train(lambda *_: None, model, steps=2)
        except BaseException:  # noqa: BLE001
            os._exit(5)
        os._exit(4)
    say("code", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    train(say, model, steps=1)


@program
def error_that_is_caught(say):
    model = net()
    for size in (4, 5, 4):
        try:
            train(say, model, steps=1, batch=lambda size=size: torch.randn(5, size))
        except RuntimeError as error:
            say("error", str(error))


@program
def loop_that_catches_everything(say):
    class Deep(nn.Module):
        def forward(self, x):
            return self(x)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for forward in (model, Deep(), lambda x: exec("raise GeneratorExit"), model):
        try:
            train(say, model, optimizer, steps=1, forward=forward)
        except BaseException as error:  # noqa: BLE001
            say("caught", type(error).__name__)


@program
def abandoned_generator(say):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps():
        while True:
            optimizer.zero_grad()
            loss = mean_square(model(torch.randn(5, 4)))
            yield loss
            loss.backward()
            optimizer.step()

    for _, loss in zip(range(3), steps(), strict=False):
        say("loss", loss)
    train(say, model, optimizer)


@program
def deleted_model(say):
    class Says:
        def __del__(self):
            say("freed", "")

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.says = net(), Says()

        def forward(self, x):
            return self.inner(x)

    for _ in range(2):
        train(say, Inner())
        gc.collect()
        say("next", "")


@program
def error_in_backward(say):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise KeyError("from backward")

    model = net()
    train(say, model, forward=lambda x: Fails.apply(model(x)))


@program
def error_at_the_end(say):
    train(say, net())
    raise RuntimeError("the script's own error")


@program
def own_exit(say):
    train(say, net())
    raise SystemExit(3)


@program
def own_warnings(say):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            warnings.warn("from forward", stacklevel=2)
            return self.inner(x)

    train(say, Model())


@program
def replaced_module_call(say):
    original, calls = nn.Module.__call__, []

    def call(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return original(self, *args, **kwargs)

    nn.Module.__call__ = call
    try:
        train(say, net())
    finally:
        nn.Module.__call__ = original
    say("calls", calls)


@program
def replaced_while_it_trains(say):
    """Functions that a watch replaces too are replaced after its start, and restored before its end."""
    calls, model = [], net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(say, model, optimizer, steps=1)
    for owner, name in (
        (nn.Module, "__call__"),
        (nn.Module, "_call_impl"),
        (torch.Tensor, "backward"),
        (torch.autograd, "backward"),
        (torch.optim.SGD, "step"),
        (optimizer, "step"),
    ):
        original = getattr(owner, name)

        def call(*args, name=name, original=original, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        setattr(owner, name, call)
        train(say, model, optimizer, steps=1)
        say(f"own {name}", getattr(owner, name) is call)
        if owner is optimizer:
            del optimizer.step
        else:
            setattr(owner, name, original)
    train(say, model, optimizer, steps=1)
    say("calls", calls)


@program
def replaced_functions(say):
    calls, original = [], F.linear

    def linear(*args):
        calls.append(len(args))
        return original(*args)

    F.linear = linear
    try:
        train(say, net())
    finally:
        F.linear = original
    say("calls", calls)


@program
def own_tracer(say):
    lines = []

    def trace(frame, event, argument):
        if frame.f_code.co_filename == __file__:
            lines.append((event, frame.f_code.co_name))
        return

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        train(say, net())
    finally:
        sys.settrace(before)
    say("lines", lines)


@program
def own_profiler(say):
    profile = cProfile.Profile()
    profile.enable()
    try:
        train(say, net())
    finally:
        profile.disable()
    found: Any = pstats.Stats(profile)
    calls = {where[2]: counts[0] for where, counts in found.stats.items() if where[0] == __file__}
    say("calls", sorted(calls.items()))


@program
def equal_objects(say):
    model = net()
    before = vars(nn.Module)["__call__"]
    train(say, model)
    say("call", [before.__qualname__, type(model).__call__ is before])
    say("copied hooks", len(copy.deepcopy(model)._forward_hooks))
    say("functions", [torch.autograd.backward.__module__, torch.Tensor.backward.__qualname__])


@program
def nested_context(say):
    @contextmanager
    def inner():
        with torch.enable_grad():
            yield

    model = net()
    with torch.no_grad(), inner(), nullcontext():
        train(say, model)
    say("enabled", torch.is_grad_enabled())


@program
def default_device(say):
    with torch.device("meta"):
        shapes = net()
    say("device", str(shapes[0].weight.device))
    model = net()
    x = torch.randn(5, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.device("meta"):  # What the script makes is on it, and nothing of a watch.
        for _ in range(2):
            optimizer.zero_grad()
            mean_square(model(x)).backward()
            optimizer.step()
    say_model(say, model, optimizer)


@program
def everything_on_meta(say):
    torch.set_default_device("meta")
    try:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            loss = mean_square(model(torch.randn(5, 4)))
            loss.backward()
            optimizer.step()
            say("loss", str(loss))
    finally:
        torch.set_default_device(None)


@program
def float_of_loss(say):
    model = net()
    best = float("inf")
    for _ in range(3):
        train(lambda name, value: None, model, steps=1)
        best = min(best, mean_square(model(torch.ones(2, 4))).item())
    say("best", best)
