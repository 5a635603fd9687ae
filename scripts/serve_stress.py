"""Thousands of requests to a server of its own, many of them wrong, slow or given up, and what they leave.

    python scripts/serve_stress.py MODEL [--requests 10000] [--clients 32] [--seed 0] [--deterministic]

Among the requests are disconnects at random moments, malformed bodies and heads, readers that take little at
a time, and well-behaved ones whose greedy answers must be those of a model that runs alone. A real model's
are only with --deterministic: its best two tokens can be so close that rounding, which depends on what else a
step computes, decides. In the end no sequence runs or waits, none holds pages of the cache, and the process
has grown by no more than a few megabytes since a third of the requests were done. Exits with 1 if anything is
not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import kukri

PROMPTS = ["Why is the sky blue?", "Name three colours.", "the sun " * 30, "Write a haiku.", "1, 2, 3,"]
N_NEW = 16
MOST_GROWTH = 64 << 20  # bytes, from a third of the requests to the end


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true", help="as `llm serve` has it")
    arguments = parser.parse_args()
    deterministic = arguments.deterministic
    with kukri.load(arguments.model, device="cpu", context=1024, deterministic=deterministic) as model:
        wanted = {
            text: model.answer(text, temperature=0, max_tokens=N_NEW).complete().text for text in PROMPTS
        }
    server, port = start(arguments.model, deterministic)
    try:
        return asyncio.run(stress(server.pid, port, wanted, arguments))
    finally:
        server.terminate()
        print("exit code of the server:", server.wait(60))


def start(model: Path, deterministic: bool) -> tuple[subprocess.Popen[bytes], int]:
    """A server whose model is loaded, and its port."""
    flags = ["--port", "0", "--parallel", "8", "--ctx", "1024", "--device", "cpu"]
    flags += ["--deterministic"] if deterministic else []
    command = [sys.executable, "-P", "-m", "kukri.cli.start", "serve", str(model), *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert server.stderr is not None
    port = 0
    while not port:
        found = re.search(rb"listening on http://[^:]*:(\d+)", server.stderr.readline())
        port = int(found[1]) if found else 0
    threading.Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/health").close()
            return server, port
        except OSError:
            time.sleep(0.2)


async def stress(pid: int, port: int, wanted: dict[str, str], arguments: argparse.Namespace) -> int:
    rng = random.Random(arguments.seed)
    slots, seen, wrong = asyncio.Semaphore(arguments.clients), Counter[str](), list[str]()
    after_a_third = 0
    n_done = 0

    async def one(kind: str, seed: int) -> None:
        nonlocal after_a_third, n_done
        async with slots:
            try:
                problem = await asyncio.wait_for(KINDS[kind](port, random.Random(seed), wanted), 300)
            except (OSError, EOFError) as error:
                problem = "" if kind != "good" else f"{type(error).__name__}: {error}"
            except TimeoutError:
                problem = "nothing within 300 s"
        seen[kind] += 1
        n_done += 1
        if problem:
            wrong.append(f"{kind}: {problem}")
        if n_done == arguments.requests // 3:
            after_a_third = memory(pid)
        if n_done % 500 == 0:
            print(f"{n_done} done, {len(wrong)} wrong, {memory(pid) >> 20} MiB", flush=True)

    started = time.monotonic()
    kinds = rng.choices(list(KINDS), [4, 3, 3, 1], k=arguments.requests)
    await asyncio.gather(*(one(kind, rng.getrandbits(32)) for kind in kinds))
    left = await leftovers(port)
    growth = memory(pid) - after_a_third
    print(
        f"{dict(seen)} in {time.monotonic() - started:.0f} s; left: {left}; grown by {growth / 2**20:.1f} MiB"
    )
    for line in wrong[:20]:
        print("wrong:", line)
    return int(bool(wrong or any(left.values()) or growth > MOST_GROWTH))


def memory(pid: int) -> int:
    """Bytes of memory that a process has, 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


async def send(port: int, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    return reader, writer


def request(body: bytes) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


def asked(text: str, **more: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"messages": messages, "max_tokens": N_NEW, "temperature": 0, **more}).encode()


async def good(port: int, rng: random.Random, wanted: dict[str, str]) -> str:
    """A request that is read to its end; what is wrong with its answer."""
    text, stream = rng.choice(PROMPTS), rng.random() < 0.5
    reader, writer = await send(port, request(asked(text, stream=stream)))
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if b" 200 " not in head[:20]:
        return f"{head[:60]!r} {body[:100]!r}"
    if stream:
        lines = [line for line in body.splitlines() if line.startswith(b"data: {")]
        found = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines)
    else:
        found = json.loads(body)["choices"][0]["message"]["content"]
    return "" if found == wanted[text] else f"{text!r} was answered by {found!r}, not {wanted[text]!r}"


async def leaves(port: int, rng: random.Random, wanted: dict[str, str]) -> str:
    """A client that leaves at a random moment, also within its own request."""
    raw = request(
        asked(rng.choice(PROMPTS), stream=rng.random() < 0.7, max_tokens=200, n=rng.choice([1, 1, 3]))
    )
    cut = rng.randrange(len(raw)) if rng.random() < 0.2 else len(raw)
    _, writer = await send(port, raw[:cut])
    await asyncio.sleep(rng.random() * 0.3)
    writer.transport.abort() if rng.random() < 0.5 else writer.close()
    return ""


async def malformed(port: int, rng: random.Random, wanted: dict[str, str]) -> str:
    """Bytes that are no request, or a request that is none of a chat; it must get an error, and soon."""
    raw = bytearray(request(asked(rng.choice(PROMPTS), max_tokens=1)))
    if rng.random() < 0.5:
        raw = bytearray(request(rng.randbytes(rng.randrange(300))))
    else:
        start = raw.index(b"\r\n\r\n")
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(start, len(raw))] = rng.randrange(256)
    reader, writer = await send(port, bytes(raw))
    writer.write_eof()
    status = (await reader.read(13))[9:12]
    writer.close()
    return "" if status in (b"", b"200") or status[:1] == b"4" else f"status {status!r}"


async def slow(port: int, rng: random.Random, wanted: dict[str, str]) -> str:
    """A reader that takes little at a time."""
    reader, writer = await send(port, request(asked(rng.choice(PROMPTS), stream=True)))
    while await reader.read(rng.randrange(1, 80)):
        await asyncio.sleep(0.005)
    writer.close()
    return ""


async def leftovers(port: int) -> dict[str, float]:
    """What is still in use when nothing is asked for any more: all of it should be 0."""
    names = ("kukri_requests_running", "kukri_requests_waiting", "kukri_cache_pages_active")
    found: dict[str, float] = {}
    for _ in range(100):
        text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
        found = {name: float(re.search(rf"^{name}\{{.*?\}} (\S+)$", text, re.M)[1]) for name in names}  # type: ignore[index]
        if not any(found.values()):
            break
        await asyncio.sleep(0.1)
    return found


KINDS = {"good": good, "leaves": leaves, "malformed": malformed, "slow": slow}

if __name__ == "__main__":
    sys.exit(main())
