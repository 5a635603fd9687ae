// What the model expected at the chosen place: alternatives, a branch from each, and what sampling leaves of them.
"use strict";

// The distribution that chose the token at `state.at`; behind the last token, what comes next.
function expectation() {
  const { seen, at } = state;
  if (at === 0 && seen.tokens.length > 1) return null; // nothing stands in front of the first token
  const behind = at === seen.tokens.length - 1 && state.ahead ? at : at - 1;
  return { behind, seen: seen.next[behind], chosen: seen.tokens[behind + 1] };
}

function viewNext() {
  const about = expectation();
  if (!about) return [element("p", "Nothing stands in front of the first token: choose another one.")];
  const full = state.distributions.get(keyOf(about.behind)); // with more tokens, and more digits
  const tokens = full || about.seen.top.map((token) => ({ ...token, logprob: Math.log(token.probability) }));
  const last = state.at === state.seen.tokens.length - 1;
  const found = [element("p", about.chosen
    ? `Behind ${JSON.stringify(state.seen.tokens[about.behind].text)} stands ${JSON.stringify(about.chosen.text)}, ` +
      (about.chosen.rank === 0 ? "the likeliest token." : `for which ${about.chosen.rank} token${about.chosen.rank === 1 ? " was" : "s were"} likelier.`)
    : `What comes behind ${JSON.stringify(state.seen.tokens[about.behind].text)}.`)];
  if (last) {
    const ahead = element("input", "", { type: "checkbox", id: "ahead" });
    ahead.checked = state.ahead;
    ahead.onchange = () => { state.ahead = ahead.checked; drawView(); };
    found.push(element("label", "", {}, ahead, " what comes behind the last token"));
  }
  found.push(element("p", "", { class: "note", id: "entropy" }), samplers(() => fill(tokens, about, found)));
  const box = element("div", "", { class: "scroll" }, element("table", "", { id: "alternatives" }));
  found.push(box);
  fill(tokens, about, found);
  if (!full && !state.saved) fetchDistribution(about.behind);
  return found;
}

function samplers(redraw) {
  const put = (name) => (value) => { state.sampling[name] = value; redraw(); };
  const s = state.sampling, places = (n) => (x) => x.toFixed(n);
  return element("div", "", { class: "sliders" },
    slider("temperature", s.temperature, { min: 0, max: 2, step: 0.05, show: places(2), id: "temperature" }, put("temperature")),
    slider("top-k", s.top_k, { min: 0, max: 100, step: 1, show: (x) => (x ? String(x) : "all"), id: "top-k" }, put("top_k")),
    slider("top-p", s.top_p, { min: 0, max: 1, step: 0.01, show: places(2), id: "top-p" }, put("top_p")),
    slider("min-p", s.min_p, { min: 0, max: 0.5, step: 0.005, show: places(3), id: "min-p" }, put("min_p")));
}

const MOST_SHOWN = 40; // alternatives, as rows

function fill(tokens, about, nodes) {
  const left = sampled(tokens, state.sampling), before = tokens.map((token) => Math.exp(token.logprob));
  const body = element("tbody");
  tokens.slice(0, MOST_SHOWN).forEach((token, i) => {
    const after = i < left.kept ? left.probabilities[i] : 0;
    const name = state.saved
      ? element("span", shown(token), { class: "mono" })
      : element("button", shown(token), { class: "mono", title: "Go on from here with this token", onclick: () => branch(about.behind, token) });
    const row = element("tr", "", { class: i < left.kept ? "" : "gone", "aria-current": about.chosen?.id === token.id && "true", "data-id": token.id });
    row.append(
      element("td", "", {}, name), element("td", String(token.id), { class: "number dim" }),
      element("td", percent(before[i]), { class: "number before" }), bar(before[i], "bar"),
      element("td", after ? percent(after) : "–", { class: "number after" }), bar(after, "bar after"));
    body.append(row);
  });
  const heads = ["token", "id", "model", "", "sampled", ""].map((text, i) =>
    element("th", text, { scope: "col", class: [1, 2, 4].includes(i) && "number" }));
  const found = nodes.find((node) => node.querySelector?.("#alternatives")).querySelector("#alternatives");
  found.replaceChildren(element("thead", "", {}, element("tr", "", {}, ...heads)), body);
  const rest = left.complete ? "" : ` at least: only ${tokens.length} tokens of the vocabulary are known here`;
  nodes.find((node) => node.id === "entropy").textContent =
    `Entropy ${number(about.seen.entropy)} bits. Sampling keeps ${left.kept} token${left.kept === 1 ? "" : "s"}${rest}` +
    ` (${number(entropyBits(left.probabilities))} bits${aloneText(tokens)}).` + (state.saved ? "" : " Click a token to go on with it instead.");
}

function aloneText(tokens) { // what each truncation keeps where it is the only one
  const off = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 }, found = [];
  for (const [name, label] of [["top_k", "top-k"], ["top_p", "top-p"], ["min_p", "min-p"]]) {
    if (state.sampling[name] === off[name]) continue;
    const left = sampled(tokens, { ...off, [name]: state.sampling[name] });
    found.push(`${label} ${left.complete ? "" : "≥ "}${left.kept}`);
  }
  return found.length > 1 ? `; alone ${found.join(", ")}` : "";
}

function bar(share, kind) {
  return element("td", "", { class: "bars" }, share ? element("span", "", { class: kind, style: `width:${(100 * share).toFixed(2)}%` }) : "");
}
