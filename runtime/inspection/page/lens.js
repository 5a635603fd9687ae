// The logit lens, the norms of the residual stream, and the choices of experts, by layer.
"use strict";

function viewLens() {
  const { seen } = state, lens = seen.lens, found = [];
  if (lens) {
    found.push(element("p", "What each layer's residual stream would say next, read by the output norm and head (logit lens; " +
      "nostalgebraist 2020). The first row is the model's answer. Stronger colour: surer. Underlined: what does follow."));
    found.push(element("div", "", { class: "scroll" }, lensTable(seen, lens)));
  }
  found.push(element("h2", `Residual stream at token ${state.at}`), normsChart(seen));
  if (seen.experts?.length) found.push(element("h2", "Experts"), expertsTable(seen));
  if (seen.states?.length) found.push(element("h2", "Recurrent states"), statesTable(seen));
  return found;
}

function lensTable(seen, lens) {
  const found = element("table", "", { class: "lens", id: "lens" }), last = Math.max(...lens.layers);
  const head = element("tr", "", {}, element("th", ""));
  seen.tokens.forEach((token) => head.append(element("th", shown(token), { scope: "col" })));
  const body = element("tbody");
  [...lens.layers.keys()].reverse().forEach((i) => {
    const layer = lens.layers[i];
    const row = element("tr", "", {}, element("th", layer === last ? "answer" : layer === 0 ? "embedding" : String(layer), { scope: "row" }));
    lens.cells[i].forEach((cells, position) => {
      const following = seen.tokens[position + 1], first = cells[0];
      const classes = [position === state.at && "here", following && first?.id === following.id && "true"].filter(Boolean);
      const cell = element("td", shown(first), { class: classes.join(" "), style: heat(first?.probability) });
      tip(cell, () => cells.map((each) => `${shown(each)}  ${percent(each.probability)}`).join("\n") +
        `\nentropy ${number(lens.entropy[i][position])} bits` +
        (following ? `\n${shown(following)}, which follows: ${percent(lens.next_probability[i][position])}` : ""));
      cell.onclick = () => select(position);
      row.append(cell);
    });
    body.append(row);
  });
  found.append(element("thead", "", {}, head), body);
  return found;
}

function normsChart(seen) {
  const lines = [["stream", seen.norms.map((row) => row[state.at]), "var(--hot)", ""], ["added by the layer", seen.updates.map((row) => row[state.at]), "var(--warm)", "5 3"]];
  const values = lines.flatMap(([, row]) => row).filter((x) => x > 0);
  const width = 620, height = 170, least = Math.log(Math.min(...values)), most = Math.log(Math.max(...values)) || 1;
  const x = (i) => 46 + (i * (width - 60)) / Math.max(1, seen.norms.length - 1);
  const y = (value) => 12 + (height - 40) * (1 - (Math.log(Math.max(value, 1e-9)) - least) / (most - least || 1));
  const found = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Root mean square by layer", id: "norms" });
  for (const mark of [Math.exp(least), Math.exp((least + most) / 2), Math.exp(most)]) {
    found.append(svg("line", { x1: 46, x2: width - 14, y1: y(mark), y2: y(mark), stroke: "var(--line)" }));
    found.append(label(number(mark, 2), 42, y(mark) + 4, "end"));
  }
  for (const [, row, colour, dashes] of lines)
    found.append(svg("polyline", { points: row.map((v, i) => `${x(i)},${y(v)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dashes }));
  for (let i = 0; i < seen.norms.length; i++) {
    const spot = svg("rect", { x: x(i) - 5, y: 8, width: 10, height: height - 32, fill: "transparent" });
    found.append(tip(spot, `${i < seen.updates.length ? "into layer " + i : "out of the last layer"}: ${number(seen.norms[i][state.at])}` +
      (i < seen.updates.length ? `\nadded by layer ${i}: ${number(seen.updates[i][state.at])}` : "")));
    if (i % Math.ceil(seen.norms.length / 12) === 0) found.append(label(String(i), x(i), height - 10, "middle"));
  }
  return element("figure", "", { style: "margin:0" }, element("figcaption", "Root mean square by layer, logarithmic. Solid: the stream; dashed: what a layer adds.", { class: "note dim" }), found);
}

function label(text, x, y, anchor = "start") {
  const found = svg("text", { x, y, "text-anchor": anchor, class: "axis" });
  found.textContent = text;
  return found;
}

function expertsTable(seen) {
  const rows = seen.experts.map((each) => [String(each.layer),
    each.experts[state.at].map((expert, i) => `${expert} (${percent(each.weights[state.at][i])})`).join("  "), String(each.n_experts)]);
  return table(["layer", `chosen for token ${state.at}, with their weights`, "of"], rows, [0, 2]);
}

function statesTable(seen) {
  const rows = seen.states.map((each) => [String(each.layer), each.norms[each.norms.length - 1].map((x) => number(x)).join("  ")]);
  return table(["layer", "norms behind the last token"], rows, [0]);
}
