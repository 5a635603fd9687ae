"""The view "time": how long the phases of an answer take, what they move, and what bounds them."""

from __future__ import annotations

from typing import Any

from ...quant.units import human_bytes
from .page import Page
from .subject import Subject


def facts(subject: Subject) -> dict[str, Any]:
    """Measured in a run of its own with an empty cache, behind one that is not counted."""
    from ...runtime.sizing.traffic import bytes_per_token, multiply_adds

    model, machine = subject.model, subject.model.engine.machine
    for _ in range(2):
        model.engine.reset()
        new = sum(1 for _ in model.generate(subject.ids, subject.params))
    stats, program = model.stats, machine.program
    kv_type = machine.kv_type.split(" ")[0]
    read = bytes_per_token(program, kv_type, len(subject.ids) + 1, max(1, new))
    return {
        "prompt_tokens": stats.prompt_tokens,
        "prefill_seconds": round(stats.prompt_seconds, 4),
        "prefill_tokens_per_second": round(stats.prompt_tokens_per_second, 1),
        "time_to_first_token": round(stats.time_to_first_token, 4),
        "new_tokens": new,
        "decode_seconds": round(stats.decode_seconds, 4),
        "decode_tokens_per_second": round(stats.tokens_per_second, 1),
        "multiply_adds_per_token": multiply_adds(program),
        "bytes_per_decode_step": round(read),
        "decode_bytes_per_second": round(read * stats.decode_steps / stats.decode_seconds)
        if stats.decode_seconds
        else 0,
        "memory_bytes_per_second": _memory_speed(subject),
    }


def _memory_speed(subject: Subject) -> float | None:
    """What the CPU reads out of memory a second; None for another machine."""
    from ...runtime.cpu.machine import CpuMachine

    machine = subject.model.engine.machine
    if not isinstance(machine, CpuMachine):
        return None
    from ...runtime.cpu.bandwidth import MIN_BYTES, ReadBandwidth

    with ReadBandwidth(machine.n_threads, MIN_BYTES) as memory:
        return round(memory.measure(runs=2))


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("Time")
    prefill, decode = found["prefill_seconds"], found["decode_seconds"]
    whole = prefill + decode or 1.0
    size = max(8, min(40, page.width - 34))
    page.line(
        f"prefill {1000 * prefill:7.0f} ms  ",
        page.bar(prefill / whole, size),
        f" {found['prompt_tokens']} tokens",
    )
    page.line(
        f"decode  {1000 * decode:7.0f} ms  ", page.bar(decode / whole, size), f" {found['new_tokens']} tokens"
    )
    page.line()
    speed = found["prefill_tokens_per_second"]
    work = 2 * found["multiply_adds_per_token"]
    page.text(
        f"Prefill: {speed:.0f} tokens/s. All tokens of the prompt go through the weights together, "
        f"{work / 1e9:.2f} GFLOP each ({work * speed / 1e9:.0f} GFLOP/s): the processor's arithmetic bounds "
        "it, and a short prompt does not fill it."
    )
    speed, moved = found["decode_tokens_per_second"], found["decode_bytes_per_second"]
    page.text(
        f"Decode: {speed:.0f} tokens/s. Each token reads all weights and the cache, "
        f"{human_bytes(found['bytes_per_decode_step'])}, for few multiplications: {human_bytes(moved)}/s."
    )
    if memory := found["memory_bytes_per_second"]:
        share = moved / memory
        bound = "memory bounds it" if share > 0.6 else "the work of each step bounds it as much"
        page.text(f"Memory gives {human_bytes(round(memory))}/s here; that is {share:.0%} of it: {bound}.")
