"""Where a model runs: the GPU, the CPU or both, by the GPU's memory and the options. The GPU is a stand-in,
and the reference machine stands in for the CUDA machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.errors import UnsupportedModel
from kukri.quant.extras import how_to_install
from kukri.quant.formats import FORMATS
from kukri.runtime.cuda.compile.kernel import CudaKernel, Kernels
from kukri.runtime.cuda.driver.errors import CudaError, CudaOutOfMemory, CudaUnavailable, NoCudaDevice
from kukri.runtime.cuda.lowering.support import device_bytes
from kukri.runtime.engine.split import SplitMachine, split, weight_bytes
from kukri.runtime.engine.tensor_split import tensor_parts
from kukri.runtime.model.cpu_experts import apart
from kukri.runtime.model.cuda_device import cuda_memory_need
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.memory_check import NotEnoughMemory
from kukri.runtime.model.options import ALL_LAYERS, LoadOptions, device_numbers
from kukri.runtime.model.placing import Placing
from kukri.runtime.model.source import open_source
from kukri.runtime.ops import Buffer, MatMul, MoE, Program
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights


class StandInDevice(SimpleNamespace):
    name = "Stand-in 100"
    index = 0
    reaching = True
    capability = 9, 0
    free = 10**12
    closed = 0

    def memory(self):
        return self.free, 10**12

    def use(self): ...

    def pinned(self, n_bytes):
        return np.empty(n_bytes, np.uint8)

    def reaches(self, other):
        return self.reaching

    def close(self):
        self.closed += 1


class StandInMachine(ReferenceMachine):
    """In place of CudaMachine."""

    problem: Exception | None = None

    def __init__(self, program, n_pages, device, max_rows, group=None, **_):
        if self.problem:
            raise self.problem
        super().__init__(program, n_pages)
        self.device = device


@pytest.fixture
def gpu(monkeypatch):
    found = StandInDevice()
    monkeypatch.setattr(StandInMachine, "problem", None)
    monkeypatch.setattr("kukri.runtime.cuda.driver.device.Device", lambda: found)
    monkeypatch.setattr("kukri.runtime.cuda.machine.CudaMachine", StandInMachine)
    monkeypatch.setattr("kukri.runtime.cuda.compile.kernel.compiler_version", lambda: "0.30")
    monkeypatch.setattr("kukri.runtime.model.cuda_device.CUDA_OVERHEAD", 0)
    monkeypatch.setattr("kukri.runtime.model.memory_check.OVERHEAD", 0)
    return found


@pytest.fixture
def folder(conformance) -> Path:
    return conformance("gemma3")  # of several layers, float


def load(folder, **options):
    said: list[str] = []
    model = load_model(folder, LoadOptions(context=64, threads=1, **options), warn=said.append, text=False)
    return model, said


def layers_on_gpu(model) -> int:
    machine = model._machine
    part = machine.back if isinstance(machine, SplitMachine) else machine
    return len(part.program.layers) - 1 if isinstance(part, StandInMachine) else 0


def n_layers(model) -> int:
    return model.config.n_layers


def test_a_model_that_fits_runs_on_the_gpu(gpu, folder):
    model, said = load(folder)
    assert layers_on_gpu(model) == n_layers(model)
    assert not said


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize("asked", [0, 1, 2, 100])
def test_as_many_layers_run_on_the_gpu_as_the_options_say(gpu, folder, device, asked):
    model, said = load(folder, device=device, gpu_layers=asked)
    assert layers_on_gpu(model) == min(asked, n_layers(model))
    assert not said
    expected, _ = load(folder, device="reference")
    ids = list(range(2, 12))
    np.testing.assert_allclose(model.logits(ids), expected.logits(ids), atol=1e-4)
    model.close()


def room_for(folder, n: int) -> int:
    """Bytes that the last n layers need with their cache and the logits."""
    source = open_source(folder, text=False)
    program = build_program(source.config, Weights(source.config, source.tensors))
    cut = len(program.layers) - 1 - n
    return cuda_memory_need(split(program, cut)[1] if cut else program, "auto").total(64)


def test_need_counts_what_formats_grow_on_the_card():
    """A matrix of Q4_K: 148 bytes for 256 weights, where the file has 144."""
    form = FORMATS["Q4_K"]
    weight = QTensor("w", form, (32, 512), np.zeros((32, form.row_bytes(512)), np.uint8))
    assert (weight.n_bytes, device_bytes(weight)) == (64 * 144, 64 * 148)
    program = Program((MatMul(Buffer("x", 512), Buffer("y", 32), weight),), (), (), Buffer("y", 32))
    assert weight_bytes(program, device_bytes) == 64 * 148


def test_auto_takes_the_layers_that_fit_and_says_so(gpu, folder):
    gpu.free = room_for(folder, 2)
    model, said = load(folder)
    assert layers_on_gpu(model) == 2 < n_layers(model)
    assert len(said) == 1
    assert f"the last 2 of {n_layers(model)} layers run on it" in said[0]


def test_auto_runs_on_the_cpu_where_no_layer_fits_and_says_why(gpu, folder):
    gpu.free = room_for(folder, 1) - 1
    model, said = load(folder)
    assert layers_on_gpu(model) == 0
    assert len(said) == 1
    assert "running on the CPU, not on the Stand-in 100" in said[0]
    assert "are free" in said[0]
    assert gpu.closed == 1


def test_cuda_refuses_what_does_not_fit_with_the_numbers(gpu, folder):
    gpu.free = room_for(folder, 3) - 1
    with pytest.raises(
        NotEnoughMemory, match=r"of memory of the Stand-in 100.* are free;.*--gpu-layers 2"
    ) as error:
        load(folder, device="cuda")
    assert "\n" not in str(error.value)
    with pytest.raises(NotEnoughMemory, match=r"3 of its \d+ layers"):
        load(folder, device="cuda", gpu_layers=3)
    model, said = load(folder, device="cuda", gpu_layers=2)
    assert layers_on_gpu(model) == 2
    assert not said


@pytest.mark.parametrize("kind", [CudaOutOfMemory, CudaUnavailable, CudaError])
def test_a_gpu_that_fails_while_loading(gpu, folder, monkeypatch, kind):
    monkeypatch.setattr(StandInMachine, "problem", kind("it did not work"))
    model, said = load(folder)
    assert layers_on_gpu(model) == 0
    assert said == ["running on the CPU, not on the Stand-in 100: it did not work"]
    with pytest.raises(kind):
        load(folder, device="cuda")
    assert gpu.closed == 2


def test_without_a_compiler(gpu, folder, monkeypatch, tmp_path):
    monkeypatch.setattr("kukri.runtime.cuda.compile.kernel.compiler_version", lambda: None)
    monkeypatch.setattr("kukri.runtime.cuda.compile.kernel.cache_folder", lambda: tmp_path)
    model, said = load(folder)
    assert layers_on_gpu(model) == 0
    assert len(said) == 1
    assert how_to_install("cuda") in said[0]
    with pytest.raises(CudaUnavailable, match="pip install"):
        load(folder, device="cuda")
    assert gpu.closed == 2
    kernels = Kernels(gpu)
    kernel = kernels._files.path(kernels._key(CudaKernel("common.pointwise", "add", 256)))
    kernel.write_bytes(b"")
    assert kernel.parent == tmp_path
    model, said = load(folder)
    assert layers_on_gpu(model) == n_layers(model)


def test_layers_without_a_gpu(folder, monkeypatch):
    def none():
        raise NoCudaDevice("no NVIDIA driver was found on this machine")

    monkeypatch.setattr("kukri.runtime.cuda.driver.device.Device", none)
    model, said = load(folder, gpu_layers=2)
    assert layers_on_gpu(model) == 0
    assert said == ["running on the CPU: no NVIDIA driver was found on this machine"]
    assert load(folder)[1] == []
    with pytest.raises(CudaUnavailable, match="--device cpu"):
        load(folder, device="cuda", gpu_layers=2)


def test_a_gpu_that_cannot_be_used(folder, monkeypatch):
    def old():
        raise CudaUnavailable("the Stand-in 100 is too old")

    monkeypatch.setattr("kukri.runtime.cuda.driver.device.Device", old)
    assert load(folder)[1] == ["running on the CPU: the Stand-in 100 is too old"]
    with pytest.raises(CudaUnavailable, match="too old; --device cpu"):
        load(folder, device="cuda")


def test_a_negative_number_of_layers(folder):
    with pytest.raises(ValueError, match="-1 layers"):
        load(folder, gpu_layers=-1)


class StandInChain(SplitMachine):
    """In place of CudaChain."""

    def __init__(self, machines):
        super().__init__(machines[0], machines[1] if len(machines) == 2 else StandInChain(machines[1:]))
        self.machines = machines


class StandInTeam(ReferenceMachine):
    """In place of CudaTeam."""

    def __init__(self, program, parts, devices, make):
        super().__init__(program, 64)
        self.machines = [make(part, device, None) for part, device in zip(parts, devices, strict=True)]


@pytest.fixture
def two_gpus(gpu, monkeypatch):
    gpus = [gpu, StandInDevice(index=1)]

    def open_device(index=0):
        if index >= len(gpus):
            raise NoCudaDevice(f"there is no NVIDIA card {index}")
        return gpus[index]

    monkeypatch.setattr("kukri.runtime.cuda.driver.device.Device", open_device)
    monkeypatch.setattr("kukri.runtime.cuda.driver.device.count_devices", lambda: 2)
    monkeypatch.setattr("kukri.runtime.cuda.chain.CudaChain", StandInChain)
    monkeypatch.setattr("kukri.runtime.cuda.team.CudaTeam", StandInTeam)
    return gpus


@pytest.mark.parametrize("mode", ["auto", "layers"])
def test_two_gpus_share_the_layers(two_gpus, folder, mode):
    model, said = load(folder, devices=(0, 1), split_mode=mode)  # three heads, which two cards cannot share
    assert [machine.device for machine in model._machine.machines] == two_gpus
    counts = [len(machine.program.layers) - 1 for machine in model._machine.machines]
    assert sum(counts) == n_layers(model)
    assert abs(counts[0] - counts[1]) <= 1
    assert not said
    expected, _ = load(folder, device="reference")
    ids = list(range(2, 12))
    np.testing.assert_allclose(model.logits(ids), expected.logits(ids), atol=1e-4)


@pytest.mark.parametrize("mode", ["auto", "tensors"])
def test_two_gpus_share_every_layer(two_gpus, conformance, mode):
    folder = conformance("llama")
    model, said = load(folder, devices=(0, 1), split_mode=mode)
    machine = model._machine
    assert isinstance(machine, StandInTeam)
    assert [part.device for part in machine.machines] == two_gpus
    assert all(len(part.program.layers) == len(machine.program.layers) for part in machine.machines)
    assert not said


def test_gpus_that_cannot_share_every_layer_say_why(two_gpus, folder, conformance):
    with pytest.raises(UnsupportedModel, match="cannot be divided by 2"):
        load(folder, device="cuda", devices=(0, 1), split_mode="tensors")
    assert [gpu.closed for gpu in two_gpus] == [2, 1]  # the first by who opened it, too
    two_gpus[1].reaching = False
    with pytest.raises(UnsupportedModel, match="cards 1 and 0 cannot share the layers of a model"):
        load(conformance("llama"), devices=(0, 1), split_mode="tensors")


def test_gpus_that_do_not_reach_each_other_have_layers_each(two_gpus, conformance):
    two_gpus[1].reaching = False
    model, said = load(conformance("llama"), devices=(0, 1))
    assert isinstance(model._machine, StandInChain)
    assert not said


def test_a_context_that_shrinks_on_two_gpus(two_gpus, conformance, monkeypatch):
    monkeypatch.setattr("kukri.runtime.model.placing.LEAST_DEFAULT_CONTEXT", 64)
    folder = conformance("llama")
    source = open_source(folder, text=False)
    program = build_program(source.config, Weights(source.config, source.tensors))
    for gpu, more in zip(two_gpus, (256, 128), strict=True):
        parts = tensor_parts(program, 2)
        gpu.free = cuda_memory_need(parts[0], "auto").total(more)
    said: list[str] = []
    options = LoadOptions(threads=1, devices=(0, 1), parallel=1, split_mode="tensors")
    model = load_model(folder, options, warn=said.append, text=False)
    assert model.context == 128
    assert len(said) == 1
    assert "the context is 128 tokens" in said[0]


def test_one_of_two_gpus(two_gpus, folder):
    model, _ = load(folder, devices=(1,))
    assert model._machine.device is two_gpus[1]
    assert load(folder)[0]._machine.device is two_gpus[0]
    with pytest.raises(CudaUnavailable, match="no NVIDIA card 2"):
        load(folder, device="cuda", devices=(2,))


def test_auto_takes_both_gpus_where_one_has_no_room(two_gpus, folder):
    for gpu in two_gpus:
        gpu.free = room_for(folder, 6) - 1
    model, said = load(folder)
    assert len(model._machine.machines) == 2
    assert "runs on all 2 cards" in said[0]


def test_what_two_gpus_have_no_room_for(two_gpus, folder):
    for gpu in two_gpus:
        gpu.free = room_for(folder, 1) + 100
    model, said = load(folder)
    assert layers_on_gpu(model) == 1  # and the others are on the CPU
    assert "the last 1 of" in said[-1]
    with pytest.raises(NotEnoughMemory, match="memory of the Stand-in 100"):
        load(folder, device="cuda", devices=(0, 1))
    assert all(gpu.closed for gpu in two_gpus)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ()}, "such as 0,1"),
        ({"devices": (0, 0)}, "each once"),
        ({"devices": (-1,)}, "such as 0,1"),
        ({"devices": (0, 1), "gpu_layers": 2}, "one card only"),
        ({"split_mode": "rows"}, "there are auto, layers, tensors"),
        ({"devices": (0, 1), "speculate": "mtp"}, "one card only"),
        ({"devices": (0,), "device": "cpu"}, "no cards to choose"),
    ],
)
def test_devices_that_cannot_be(folder, options, message):
    with pytest.raises(ValueError, match=message):
        load(folder, **options)


def test_numbers_of_devices():
    assert device_numbers("0,1") == (0, 1)
    assert device_numbers([1, 0]) == (1, 0)
    assert device_numbers(None) is None
    with pytest.raises(ValueError, match="not 'a'"):
        device_numbers("a")


@pytest.mark.parametrize("name", ["llama", "deepseek-v2", "gemma4"])
@pytest.mark.parametrize("kind", ["f32", "f16/q8_0", "q4_0"])
def test_the_cpus_cache_takes_what_the_memory_check_counts(conformance, monkeypatch, name, kind):
    """Heads of any size, which quantised keys and all values are padded from; values taken out of keys."""
    needs = []

    def noted(placing, need, available, memory="memory"):
        needs.append(need)
        return 64

    monkeypatch.setattr(Placing, "fitting_context", noted)
    model, _ = load(conformance(name), device="cpu", kv_type=kind)
    machine = model.engine.machine
    assert needs[0].per_token == sum(machine.page_bytes) / machine.page_size
    model.close()


@pytest.fixture
def hosting(gpu, monkeypatch):
    """The hosts of machines whose experts the CPU has; the machines themselves are stand-ins."""
    hosts = []

    class Hosted(StandInMachine):
        def __init__(self, program, n_pages, host, **more):
            super().__init__(program, n_pages, **more)
            hosts.append(host)

    monkeypatch.setattr("kukri.runtime.cuda.hosted.HostedCudaMachine", Hosted)
    return hosts


@pytest.mark.parametrize(("asked", "found"), [(1, 1), (ALL_LAYERS, 2)])
def test_experts_stay_on_the_cpu(gpu, hosting, conformance, asked, found):
    model, said = load(conformance("mixtral"), cpu_moe=asked)
    mixtures = [op for op in model._machine.program.ops if isinstance(op, MoE)]
    assert [op in hosting[0] for op in mixtures] == [i < found for i in range(len(mixtures))]
    assert not said
    model.close()


def test_the_card_needs_no_room_for_experts_on_the_cpu(gpu, hosting, conformance):
    source = open_source(conformance("mixtral"), text=False)
    program = build_program(source.config, Weights(source.config, source.tensors))
    mixtures = [op for op in program.ops if isinstance(op, MoE)]
    experts, rest = apart(program, mixtures)
    assert weight_bytes(experts) + weight_bytes(rest) == weight_bytes(program)
    gpu.free = cuda_memory_need(rest, "auto").total(64)
    load(conformance("mixtral"), device="cuda", cpu_moe=ALL_LAYERS)[0].close()
    with pytest.raises(NotEnoughMemory):
        load(conformance("mixtral"), device="cuda", cpu_moe=len(mixtures) - 1)


def test_a_model_without_experts_says_so(gpu, folder):
    model, said = load(folder, cpu_moe=ALL_LAYERS)
    assert layers_on_gpu(model) == n_layers(model)
    assert len(said) == 1
    assert "no experts" in said[0]
    with pytest.raises(ValueError, match="one card"):
        LoadOptions(cpu_moe=1, gpu_layers=2)
