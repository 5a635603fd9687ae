// What belongs to the model and not to a prompt: rotary angles, and what weights and KV cache take.
"use strict";

function viewRope() {
  const about = state.facts?.rope;
  if (!about) return [element("p", state.facts ? "" : "…")];
  if (!about.length) return [element("p", "No layer of this model has rotary position embeddings (RoPE).")];
  const rope = about[Math.min(state.rope, about.length - 1)], found = [];
  if (about.length > 1)
    found.push(choice("Layers", about.map((each, i) => [i, ranges(each.layers)]), state.rope, (value) => { state.rope = Number(value); drawView(); }, "rope-layers"));
  const n = rope.inv_freq.length, position = state.ropeAt ?? state.at;
  found.push(element("p", `${n} pairs of dimensions${rope.interleaved ? ", neighbours" : `, dimension i with i + ${n}`}, base ${number(rope.base, 6)}` +
    `${rope.scaling ? `, scaling: ${rope.scaling}` : ""}. Pair i turns by ${rope.factor === 1 ? "" : "position / factor · "}base^(-2i/${2 * n}) radians a token: ` +
    "the first pairs tell neighbours apart, the last ones hardly move (Su et al. 2021).", { class: "note" }));
  const dials = element("div", "", { id: "dials" });
  found.push(element("div", "", { class: "sliders" }, slider("position", position, { min: 0, max: Math.max(64, state.seen?.tokens.length || 0, 512), step: 1, id: "rope-at" },
    (value) => { state.ropeAt = value; dials.replaceChildren(drawDials(rope, value)); })));
  dials.append(drawDials(rope, position));
  found.push(dials, element("h2", "Cosine of the angle: positions down, pairs across"), ropeMap(rope), element("h2", "Wavelengths"), wavelengths(rope));
  return found;
}

function ranges(layers) {
  const found = [];
  for (const layer of layers) {
    const last = found[found.length - 1];
    if (last && last[1] === layer - 1) last[1] = layer;
    else found.push([layer, layer]);
  }
  const text = found.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
  return text.length > 40 ? `${layers.length} layers: ${text.slice(0, 34)} …` : text;
}

function drawDials(rope, position) {
  const n = rope.inv_freq.length, across = Math.min(16, n), size = 44;
  const found = svg("svg", { viewBox: `0 0 ${across * size} ${Math.ceil(n / across) * (size + 12)}`, width: across * size, role: "img",
    "aria-label": `Angles at position ${position}` });
  rope.inv_freq.forEach((frequency, i) => {
    const x = (i % across) * size + size / 2, y = Math.floor(i / across) * (size + 12) + size / 2;
    const angle = position * frequency, turned = angle % (2 * Math.PI);
    const group = svg("g", { "data-pair": i, "data-angle": angle });
    group.append(svg("circle", { cx: x, cy: y, r: 18, class: "dial" }),
      svg("line", { x1: x, y1: y, x2: x + 17 * Math.cos(turned), y2: y - 17 * Math.sin(turned), class: "hand" }), label(String(i), x, y + 30, "middle"));
    tip(group, `pair ${i} at position ${position}: ${number(angle, 4)} radians, ${number(((180 / Math.PI) * turned) % 360, 4)}°`);
    found.append(group);
  });
  return found;
}

function ropeMap(rope) {
  const n = rope.inv_freq.length, positions = 128, canvas = element("canvas", "", { style: `width:${Math.min(640, 10 * n)}px;height:256px;max-width:100%`, id: "rope-map" });
  paint(canvas, (i, position) => (1 + Math.cos(position * rope.inv_freq[i])) / 2, n, positions, (x) => x);
  return tip(canvas, "");
}

function wavelengths(rope) {
  const rows = rope.inv_freq.map((frequency, i) => [String(i), String(Number(frequency.toPrecision(6))), number((2 * Math.PI) / frequency, 4)]);
  const found = table(["pair", "radians a token", "tokens a turn"], rows, [0, 1, 2]);
  found.id = "wavelengths";
  return element("div", "", { class: "scroll", style: "max-height:16rem" }, found);
}

// ---- memory

function viewMemory() {
  const sizes = state.facts?.sizes;
  if (!sizes) return [element("p", state.facts ? "The sizes of this model are not known." : "…")];
  const m = state.memory, kinds = Object.keys(sizes.kv_per_token), types = [sizes.stored, ...sizes.recipes];
  m.kv ??= kinds.includes(state.seen?.cache?.kv_type) ? state.seen.cache.kv_type : kinds[0];
  const most = Math.max(sizes.context || 131072, 1024), result = element("div", "", { id: "memory" });
  const redraw = () => result.replaceChildren(...memoryResult(sizes, types));
  const put = (name) => (value) => { m[name] = Number.isNaN(Number(value)) ? value : Number(value); redraw(); };
  const found = element("div", "", { class: "sliders" },
    slider("tokens of context", Math.log2(Math.min(m.context, most)), { min: 6, max: Math.log2(most), step: 0.25, id: "context", show: (x) => String(Math.round(2 ** x)) },
      (x) => { m.context = Math.round(2 ** x); redraw(); }),
    slider("sequences at once", m.sequences, { min: 1, max: 64, step: 1, id: "sequences" }, put("sequences")),
    choice("weights", types.map((each, i) => [i, `${each.recipe || "as they are"} (${bytes(each.n_bytes)})`]), m.weights, put("weights"), "weights"),
    choice("KV cache", kinds, m.kv, put("kv"), "kv"));
  redraw();
  const groups = sizes.attention.map((each) => [each.kind, ranges(each.layers), String(each.heads), String(each.kv_heads), String(each.head_dim),
    each.window ? String(each.window) : "all", each.cached ? String(each.cached) : "shared"]);
  const cache = state.seen?.cache, own = cache
    ? [element("p", `The ${state.seen.tokens.length} tokens above take ${cache.pages} page${cache.pages === 1 ? "" : "s"} of ${cache.page_size} tokens in each of ` +
      `${cache.layers.length} layers: ${bytes(cache.bytes)} in ${cache.kv_type}.`, { id: "own-cache" })] : [];
  return [found, result, ...own, element("h2", "Attention by layer"),
    element("div", "", { class: "scroll" }, table(["kind", "layers", "heads", "KV heads", "head size", "window", "numbers a token"], groups, [2, 3, 4, 6]))];
}

function memoryResult(sizes, types) {
  const m = state.memory, page = sizes.page_tokens, tokens = Math.ceil(m.context / page) * page;
  const parts = [["weights", types[m.weights].n_bytes, KINDS[0]], ["KV cache", m.sequences * tokens * sizes.kv_per_token[m.kv], KINDS[1]],
    ["recurrent states", m.sequences * sizes.state_bytes, KINDS[2]]].filter(([, size]) => size);
  const total = parts.reduce((sum, [, size]) => sum + size, 0);
  const stack = element("div", "", { class: "stack", role: "img", "aria-label": "Shares of the memory" });
  for (const [name, size, colour] of parts) stack.append(tip(element("div", "", { style: `width:${(100 * size) / total}%;background:${colour}` }), `${name}: ${bytes(size)}`));
  const rows = parts.map(([name, size, colour]) => [element("span", "", {}, element("span", "", { class: "key-of", style: `background:${colour}` }), name), bytes(size), percent(size / total)]);
  rows.push(["together", bytes(total), ""]);
  const found = table(["", "", ""], rows, [1, 2]);
  found.id = "memory-table";
  found.tHead.remove();
  const notes = [`${number(sizes.kv_per_token[m.kv], 4)} bytes of cache a token, in pages of ${page} tokens.`];
  if (sizes.attention.some((each) => each.window)) notes.push("Layers with a window keep all tokens, too.");
  if (sizes.cpu_share > 1) notes.push(`On the CPU the cache takes ${number(sizes.cpu_share)} times as much.`);
  return [stack, found, element("p", notes.join(" "), { class: "note" })];
}
