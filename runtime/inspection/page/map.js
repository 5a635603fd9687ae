// The map of token embeddings with their neighbours, and the tree of a beam search.
"use strict";

function viewMap() {
  const data = state.map;
  if (!data) {
    if (state.saved) return [element("p", "This page was saved without embeddings.")];
    fetchMap();
    return [element("p", "…")];
  }
  const width = 640, height = 420, pad = 40;
  const xs = data.points.map((p) => p.x), ys = data.points.map((p) => p.y);
  const scale = (values, from, to) => (v) => from + ((v - Math.min(...values)) / (Math.max(...values) - Math.min(...values) || 1)) * (to - from);
  const x = scale(xs, pad, width - pad), y = scale(ys, height - pad, pad);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Map of embeddings", id: "map" });
  for (const point of [...data.points].sort((a, b) => a.asked - b.asked)) {
    const node = svg("g", { "data-id": point.id, tabindex: point.asked ? 0 : undefined });
    node.append(svg("circle", { cx: x(point.x), cy: y(point.y), r: point.asked ? 5 : 3, fill: point.asked ? "var(--hot)" : "var(--warm)", opacity: point.asked ? 1 : 0.6 }));
    const text = label(shown(point).slice(0, 14), x(point.x) + 7, y(point.y) + 4);
    if (!point.asked) set(text, { opacity: 0.65, style: "font-size:10px" });
    node.append(text);
    tip(node, `${shown(point)}, id ${point.id}\n${number(point.x)}, ${number(point.y)}`);
    if (point.asked) {
      node.onclick = () => { state.near = point.id; drawView(); };
      node.onkeydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); node.onclick(); } };
    }
    chart.append(node);
  }
  const at = data.near.find((each) => each.id === state.near) || data.near.find((each) => each.id === state.seen?.tokens[state.at]?.id) || data.near[0];
  const rows = at.tokens.map((token) => [element("span", shown(token), { class: "mono" }), String(token.id), number(token.cosine, 4), barOf(token.cosine)]);
  const near = table(["nearest", "id", "cosine", ""], rows, [1, 2]);
  near.id = "near";
  return [
    element("p", "Embeddings of the different tokens (large) and of their nearest neighbours (small), by the directions of their vectors, on the " +
      `two axes along which they differ most (${percent(data.shares[0])} and ${percent(data.shares[1])} of the variance). Choose a token for its neighbours.`, { class: "note" }),
    element("div", "", { class: "row" }, element("div", "", { class: "scroll" }, chart),
      element("div", "", {}, element("h2", `Near ${shown(at)} (${at.id})`), near)),
  ];
}

function barOf(share) {
  return element("span", "", { class: "bar", style: `width:${(60 * Math.max(0, share)).toFixed(1)}px` });
}

// ---- beams

function viewBeams() {
  const data = state.beams, found = [];
  if (!state.saved) {
    const go = element("button", "Search", { id: "search" });
    go.onclick = fetchBeams;
    const put = (name) => (value) => { state.beamOptions[name] = value; };
    found.push(element("div", "", { class: "sliders" },
      slider("beams", state.beamOptions.k, { min: 1, max: 8, step: 1, id: "beam-k" }, put("k")),
      slider("tokens at most", state.beamOptions.max_tokens, { min: 1, max: 32, step: 1, id: "beam-tokens" }, put("max_tokens")),
      slider("length penalty", state.beamOptions.length_penalty, { min: -2, max: 3, step: 0.1, id: "beam-penalty" }, put("length_penalty"))), go);
  }
  if (!data) return [...found, element("p", state.saved ? "This page was saved without a beam search." : `Searches behind the ${state.seen.n_prompt ?? state.seen.tokens.length} tokens of the prompt.`)];
  found.push(element("p", "Each step keeps the beams with the largest sum of log probabilities; thick lines are likely tokens, filled nodes end answers.", { class: "note" }),
    element("div", "", { class: "scroll", id: "tree" }, drawTree(data)));
  const rows = data.ends.map((end, i) => [String(i + 1), element("span", end.tokens.map(shown).join("").replace(/·/g, " "), { class: "mono", style: "white-space:pre-wrap" }),
    number(end.score, 4), number(end.logprob, 4), end.finish_reason]);
  const answers = table(["", "answer", "score", "log probability", "ended by"], rows, [2, 3]);
  answers.id = "answers";
  found.push(element("h2", "Answers, the best first"), element("div", "", { class: "scroll" }, answers));
  return found;
}

function drawTree(data) {
  const children = new Map(), rows = new Map();
  data.nodes.forEach((node, i) => children.set(node.parent, [...(children.get(node.parent) || []), i]));
  let next = 0;
  const place = (i) => { // leaves one below the other, parents in the middle of theirs
    const below = children.get(i) || [];
    below.forEach(place);
    rows.set(i, below.length ? below.reduce((sum, each) => sum + rows.get(each), 0) / below.length : next++);
  };
  place(-1);
  const steps = Math.max(1, ...data.nodes.map((node) => node.step)), w = 92, h = 34;
  const x = (i) => 16 + (i < 0 ? 0 : data.nodes[i].step * w), y = (i) => 20 + rows.get(i) * h;
  const width = (steps + 1) * w + 30, height = Math.max(1, next) * h + 14;
  const found = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, style: "max-width:none", role: "img",
    "aria-label": `Beam search: ${data.nodes.length} tokens in ${steps} steps` });
  const ended = new Set(data.ends.map((end) => end.node));
  data.nodes.forEach((node, i) => {
    const [a, b, c, d] = [x(node.parent), y(node.parent), x(i), y(i)];
    found.append(svg("path", { d: `M${a},${b} C${(a + c) / 2},${b} ${(a + c) / 2},${d} ${c},${d}`, class: "edge", "stroke-width": 1 + 6 * node.probability, opacity: 0.55 }));
  });
  found.append(svg("circle", { cx: x(-1), cy: y(-1), r: 5, class: "node" }));
  data.nodes.forEach((node, i) => {
    const group = svg("g", { class: ended.has(i) ? "ended" : "", "data-node": i });
    group.append(svg("circle", { cx: x(i), cy: y(i), r: 5, class: "node" }), label(shown(node).slice(0, 10), x(i), y(i) - 9, "middle"));
    found.append(tip(group, `${shown(node)}: ${percent(node.probability)}\nsum of log probabilities ${number(node.logprob, 4)}`));
  });
  return found;
}
