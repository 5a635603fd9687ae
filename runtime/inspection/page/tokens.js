// The strip of tokens above all views, and the view that lists them.
"use strict";

function drawStrip() {
  const strip = $("strip"), seen = state.seen;
  strip.replaceChildren();
  $("sequence").hidden = !seen;
  if (!seen) return;
  for (const token of seen.tokens) {
    const node = element("span", shown(token), {
      role: "option", id: `token-${token.position}`, "aria-selected": String(token.position === state.at),
      class: [token.position >= (seen.n_prompt ?? Infinity) && "new", token.special && "special"].filter(Boolean).join(" "),
      style: token.probability === null ? "" : heat(Math.sqrt(token.probability)),
    });
    node.append(element("small", String(token.id)));
    node.onclick = () => select(token.position);
    tip(node, () => `${token.position}: ${JSON.stringify(token.text)}, id ${token.id}` +
      (token.probability === null ? "" : `\nprobability ${percent(token.probability)}, rank ${token.rank}`));
    strip.append(node);
  }
  strip.setAttribute("aria-activedescendant", `token-${state.at}`);
  $(`token-${state.at}`)?.scrollIntoView({ block: "nearest" });
  const written = seen.tokens.length - (seen.n_prompt ?? seen.tokens.length);
  $("legend").textContent = `${seen.tokens.length} tokens` + (written > 0 ? `, ${written} of them written by the model (underlined)` : "") +
    ". The stronger its colour, the likelier the model held a token. Click one, or move with the arrow keys.";
}

$("strip").onkeydown = (event) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  if (!(event.key in steps) || !state.seen) return;
  event.preventDefault();
  select(Math.max(0, Math.min(state.seen.tokens.length - 1, state.at + steps[event.key])));
};

function viewTokens() {
  const tokens = state.seen.tokens, text = tokens.map((token) => token.text).join("");
  const characters = [...text].length;
  const rows = tokens.map((token) => [
    String(token.position), String(token.id), element("span", shown(token), { class: "mono" }),
    token.bytes || [...new TextEncoder().encode(token.text)].map((byte) => byte.toString(16).padStart(2, "0")).join(" "),
    percent(token.probability), token.rank ?? "",
    token.probability ? number(-Math.log2(token.probability)) : "",
  ]);
  const found = table(["#", "id", "token", "bytes", "probability", "rank from 0", "surprise (bits)"], rows, [0, 1, 4, 5, 6]);
  found.id = "token-table";
  [...found.tBodies[0].rows].forEach((row, i) => {
    row.onclick = () => select(i);
    if (i === state.at) row.setAttribute("aria-current", "true");
    if (tokens[i].special) row.cells[2].append(element("span", " control", { class: "dim" }));
  });
  return [
    element("p", `${tokens.length} tokens, ${characters} characters: ${number(characters / tokens.length)} characters a token.`),
    element("div", "", { class: "scroll" }, found),
    ...mergesOf(state.seen),
  ];
}

function mergesOf(seen) { // how BPE joined the letters of each piece, where the inspection says so
  if (!seen.merges?.length) return [];
  const blanks = (text) => text.replace(/ /g, "·").replace(/\n/g, "⏎");
  const rows = seen.merges.map((steps) => steps.map((pieces) => blanks(pieces.join("|"))).join("  →  "));
  const found = element("table", "", { id: "merges" }, ...rows.map((text) => element("tr", "", {}, element("td", text, { class: "mono" }))));
  return [element("h2", "How byte-pair encoding joined the prompt's words"), element("div", "", { class: "scroll" }, found)];
}
