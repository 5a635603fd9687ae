// Attention: a strip for each layer and head of the chosen token's row, and the whole matrix of one head.
"use strict";

function viewAttention() {
  const rows = state.attentionRows.get(state.at), { head } = state;
  const found = [element("p", `Where token ${state.at} looks, in each layer (down) and head (across). Hover or focus a head: the tokens above ` +
    "take its weights. Enter or a click shows the head's whole matrix.", { class: "note" })];
  if (!rows) {
    if (state.saved) return [element("p", "This page was saved without the attention of this token.")];
    fetchRows(state.at);
    return [...found, element("p", "…")];
  }
  if (!rows.length) return [element("p", "No layer of this model has attention.")];
  found.push(element("div", "", { class: "row" }, element("div", "", { class: "scroll" }, headGrid(rows)), matrixBox(head)));
  return found;
}

function headGrid(layers) {
  const found = element("table", "", { class: "heads", id: "heads" });
  for (const each of layers) {
    const row = found.insertRow();
    row.append(element("th", `${each.layer}${each.window ? " w" : ""}`, { scope: "row", title: each.window ? `window of ${each.window} tokens` : "" }));
    each.heads.forEach((head, h) => {
      const weights = each.weights[h][0], canvas = element("canvas", "", { style: "width:44px;height:12px" });
      paint(canvas, (x) => weights[x], Math.max(1, state.at + 1), 1);
      const chosen = state.head && state.head.layer === each.layer && state.head.head === head;
      const button = element("button", "", { "aria-label": `layer ${each.layer}, head ${head}: ${strongest(weights, 1)}`, "aria-pressed": String(Boolean(chosen)),
        "data-layer": each.layer, "data-head": head }, canvas);
      tip(button, () => `layer ${each.layer}, head ${head}` + (each.kv_heads < each.n_heads ? `, keys ${Math.floor((head * each.kv_heads) / each.n_heads)}` : "") + `\n${strongest(weights, 4)}`);
      button.onpointerenter = button.onfocus = () => overlay(weights);
      button.onpointerleave = button.onblur = () => overlay(null);
      button.onclick = () => { state.head = { layer: each.layer, head }; drawView(); document.querySelector(`[data-layer="${each.layer}"][data-head="${head}"]`)?.focus(); };
      row.insertCell().append(button);
    });
  }
  found.onkeydown = (event) => gridKeys(event, found);
  return found;
}

function gridKeys(event, grid) { // arrow keys between the buttons of a table
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  event.preventDefault();
  grid.rows[cell.parentNode.rowIndex + step[0]]?.cells[cell.cellIndex + step[1]]?.querySelector("button")?.focus();
}

function strongest(weights, n) {
  return [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, n)
    .map((i) => `${percent(weights[i])} ${shown(state.seen.tokens[i])} (${i})`).join("\n");
}

function overlay(weights) { // put the weights of a row on the tokens of the strip; null: what was there
  for (const node of $("strip").children) {
    const position = Number(node.id.slice(6)), token = state.seen.tokens[position];
    node.style.cssText = weights ? heat(Math.sqrt(weights[position] || 0)) : token.probability === null ? "" : heat(Math.sqrt(token.probability));
  }
}

function matrixBox(head) {
  if (!head) return element("p", "Choose a head.", { class: "dim" });
  const box = element("div", "", { id: "matrix-box", style: "flex:1 1 20rem" });
  const found = state.matrices.get(`${head.layer}/${head.head}`);
  box.append(element("h2", `Layer ${head.layer}, head ${head.head}`));
  if (!found) {
    if (state.saved) box.append(element("p", "This page was saved without this head's matrix."));
    else { fetchMatrix(head); box.append(element("p", "…")); }
    return box;
  }
  const n = found.length, size = Math.min(480, Math.max(160, 12 * n)), canvas = element("canvas", "", {
    id: "matrix", tabindex: 0, role: "img", "aria-label": "Attention weights; arrow keys read them out", style: `width:${size}px;height:${size}px;max-width:100%` });
  paint(canvas, (x, y) => found[y][x], n, n);
  let at = [state.at, state.at];
  const told = element("p", "", { class: "note", id: "weight", "aria-live": "polite" });
  const tell = ([row, column]) => {
    at = [Math.max(0, Math.min(n - 1, row)), Math.max(0, Math.min(n - 1, column))];
    const [from, to] = at.map((i) => state.seen.tokens[i]);
    told.textContent = `${shown(from)} (${at[0]}) looks at ${shown(to)} (${at[1]}): ${percent(found[at[0]][at[1]])}`;
  };
  canvas.onpointermove = (event) => tell([Math.floor((n * event.offsetY) / canvas.clientHeight), Math.floor((n * event.offsetX) / canvas.clientWidth)]);
  canvas.onkeydown = (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    tell([at[0] + step[0], at[1] + step[1]]);
  };
  canvas.onclick = () => select(at[0]);
  tell(at);
  box.append(canvas, told, element("p", summary(found), { class: "note dim" }));
  return box;
}

function summary(weights) { // how much of its attention a head gives to usual places; as heads.py defines them
  const parts = headScores(weights, state.seen.tokens.map((token) => token.id));
  return `Rows are tokens that look, columns what they look at. On average ${percent(parts.previous)} goes to the previous token, ` +
    `${percent(parts.first)} to the first, ${percent(parts.own)} to the token itself` +
    (parts.induction === null ? "." : `, and where a token was there before, ${percent(parts.induction)} to what followed it then (induction).`);
}

function headScores(weights, ids) {
  const found = { previous: 0, first: 0, own: 0 }, n = weights.length - 1, inductions = [];
  for (let row = 1; row <= n; row++) {
    found.previous += weights[row][row - 1] / n;
    found.first += weights[row][0] / n;
    found.own += weights[row][row] / n;
    const behind = [...ids.keys()].slice(1, row).filter((place) => ids[place - 1] === ids[row]);
    if (behind.length) inductions.push(behind.reduce((sum, place) => sum + weights[row][place], 0));
  }
  return { ...found, induction: inductions.length ? inductions.reduce((a, b) => a + b) / inductions.length : null };
}
