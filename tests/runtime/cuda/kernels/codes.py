"""Quantised activations, as `kernels/common.emit_codes` lays them out, in NumPy."""

from __future__ import annotations

import numpy as np


def quantized(x: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as `quantize` writes them with TOKENS = `tokens`, and the values that they represent."""
    blocks = x.reshape(len(x), -1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        codes = np.rint(blocks * np.where(peak > 0, np.float32(32512) / peak, 0).astype(np.float32))
    d = peak[..., 0] * np.float32(1 / 32512)
    codes = codes.astype(int)
    digits = np.stack([codes + 128 >> 8, codes & 255], 2).astype(np.uint8)  # [rows, blocks, 2, 32]
    pieces = digits.reshape(*d.shape, 2, 2, 4, 4)  # … digit, half, t, 4
    n_blocks = d.shape[1]
    out = np.zeros((4, n_blocks, tokens, 2, 2, 4), np.uint8)
    out[:, :, : len(x)] = pieces.transpose(4, 1, 0, 2, 3, 5)
    halves = codes.reshape(*d.shape, 2, 16).sum(-1)
    factors = np.stack([d, d * halves.sum(-1), d * halves[..., 0], d * halves[..., 1]]).astype(np.float32)
    fours = -(-n_blocks // 4)
    scales = np.zeros((4, fours, tokens, 4), np.float32)
    for kind in range(4):
        padded = np.zeros((len(x), 4 * fours), np.float32)
        padded[:, :n_blocks] = factors[kind]
        scales[kind, :, : len(x)] = padded.reshape(len(x), fours, 4).transpose(1, 0, 2)
    raw = np.concatenate([out.reshape(-1), scales.view(np.uint8).reshape(-1)])
    return raw, (codes * d[..., None]).reshape(x.shape).astype(np.float32)


def dequantized(raw: np.ndarray, width: int, rows: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Values [rows, width], and scales [4, rows, blocks], of quantised rows."""
    blocks, fours = width // 32, -(-width // 128)
    pieces = raw[: 64 * tokens * blocks].reshape(4, blocks, tokens, 2, 2, 4).transpose(2, 1, 3, 4, 0, 5)
    digits = pieces.reshape(tokens, blocks, 2, 32).view(np.int8).astype(int)
    scales = raw[64 * tokens * blocks :].view(np.float32).reshape(4, fours, tokens, 4).transpose(0, 2, 1, 3)
    scales = scales.reshape(4, tokens, -1)[:, :rows, :blocks]
    codes = (256 * digits[:, :, 0] + digits[:, :, 1])[:rows]
    np.testing.assert_allclose(scales[1], scales[0] * codes.sum(-1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scales[2], scales[0] * codes[..., :16].sum(-1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scales[3], scales[0] * codes[..., 16:].sum(-1), rtol=1e-5, atol=1e-6)
    return (codes * scales[0][..., None]).reshape(rows, width), scales


def empty(width: int, tokens: int) -> np.ndarray:
    return np.zeros(tokens * 16 * (4 * (width // 32) + 4 * -(-width // 128)), np.uint8)
