// The page: what is shown, what the server is asked, and which view is open.
"use strict";

const kept = (name, otherwise) => { try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; } };
const keep = (name, value) => { try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* private mode, or a file */ } };

const VIEWS = [["tokens", "Tokens", viewTokens], ["next", "Probabilities", viewNext], ["attention", "Attention", viewAttention], ["lens", "Layers", viewLens],
  ["rope", "Positions", viewRope], ["map", "Embeddings", viewMap], ["beams", "Beams", viewBeams], ["memory", "Memory", viewMemory], ["time", "Time", viewTime], ["batch", "Batch", viewTimeline]];

const state = {
  seen: null, // an inspection as plain data
  at: 0, // the chosen position
  ahead: false, // whether the distribution behind the last token is meant, not the one that chose it
  tab: "next",
  earlier: [], // messages in front of the prompt, of a conversation on the chat page
  saved: false, // a page with its data in it, which asks nobody
  distributions: new Map(), attentionRows: new Map(), matrices: new Map(), // what was asked about this inspection
  head: null, map: null, near: null, beams: null,
  facts: null, rope: 0, ropeAt: null, // about the model
  sampling: { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 },
  beamOptions: { k: 3, max_tokens: 8, length_penalty: 1 },
  memory: { context: 4096, sequences: 1, weights: 0, kv: null },
  timeline: { steps: [], told: null, paused: false },
};

// ---- asking

let asked = 0; // requests on their way

async function ask(path, body) {
  const key = $("key").value || kept("kukri.settings", {}).key, headers = { "content-type": "application/json" };
  if (key) headers.authorization = "Bearer " + key;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify({ model: $("model").value || null, ...body }) });
  const told = await response.json().catch(() => null);
  if (!response.ok) throw new Error(told?.error?.message || `HTTP ${response.status}`);
  return told;
}

async function busy(work) { // `work` with a word about it; what an old inspection is told comes too late
  const seen = state.seen;
  $("state").textContent = "…";
  asked++;
  try {
    const put = await work();
    $("problem").hidden = true;
    if (state.seen === seen || put?.always) { put?.(); drawView(); }
  } catch (problem) { complain(problem); }
  if (--asked === 0) $("state").textContent = "";
}

function complain(problem) {
  $("problem").textContent = problem.message;
  $("problem").hidden = false;
}

const idsUpTo = (position) => state.seen.tokens.slice(0, position + 1).map((token) => token.id);
const keyOf = (position) => idsUpTo(position).join(",");
const pending = new Set();

function once(name, work) { // a question that a view asks when it is drawn, which may be often
  if (pending.has(name)) return;
  pending.add(name);
  busy(work).finally(() => pending.delete(name));
}

function fetchDistribution(position) {
  const key = keyOf(position), seen = state.seen;
  once("next " + key, async () => {
    const told = await ask("inspect/next", { ids: seen.tokens.slice(0, position + 1).map((token) => token.id), n: 200 });
    return () => state.distributions.set(key, told.top);
  });
}

function fetchRows(position) {
  const ids = idsUpTo(state.seen.tokens.length - 1);
  once("rows " + position, async () => {
    const told = await ask("inspect/attention", { ids, rows: [position] });
    return () => state.attentionRows.set(position, told.attention);
  });
}

function fetchMatrix({ layer, head }) {
  const ids = idsUpTo(state.seen.tokens.length - 1);
  once(`matrix ${layer}/${head}`, async () => {
    const told = await ask("inspect/attention", { ids, layers: [layer], heads: [head] });
    return () => state.matrices.set(`${layer}/${head}`, told.attention[0].weights[0]);
  });
}

function fetchMap() {
  const ids = idsUpTo(state.seen.tokens.length - 1);
  once("map", async () => {
    const told = await ask("inspect/near", { ids, n: 5 });
    return () => { state.map = told; };
  });
}

function fetchBeams() {
  const ids = idsUpTo(state.seen.n_prompt - 1), options = { ...state.beamOptions };
  once("beams", async () => {
    const told = await ask("inspect/beams", { ids, ...options });
    return () => { state.beams = told; };
  });
}

function inspect(what, at, n_prompt) { // shows position `at` then, and the tokens from `n_prompt` on as the model's; null: what follows
  const { temperature, top_k, top_p, min_p } = state.sampling, max_tokens = Number($("most").value);
  $("run").disabled = true;
  return busy(async () => {
    const told = await ask("inspect/prompt", { ...what, max_tokens, temperature, top_k, top_p, min_p, top: 20 });
    told.n_prompt = n_prompt ?? told.n_prompt;
    return Object.assign(() => show(told, at ?? told.n_prompt), { always: true });
  }).finally(() => { $("run").disabled = false; });
}

function branch(behind, token) { // go on behind `behind` with another token
  inspect({ ids: [...idsUpTo(behind), token.id] }, behind + 1, Math.min(state.seen.n_prompt, behind + 1));
}

// ---- showing

function show(seen, at) {
  Object.assign(state, { seen, at: Math.max(0, Math.min(at, seen.tokens.length - 1)), ahead: at >= seen.tokens.length, map: null, near: null, beams: null });
  for (const found of [state.distributions, state.attentionRows, state.matrices]) found.clear();
  drawStrip();
}

function select(position) {
  state.at = position;
  state.ahead = false;
  drawStrip();
  drawView();
}

function drawTabs() {
  const views = VIEWS.filter(([name]) => !state.saved || name !== "batch");
  $("tabs").replaceChildren(...views.map(([name, text]) => {
    const tab = element("button", text, { role: "tab", id: "tab-" + name, "aria-selected": String(name === state.tab), "aria-controls": "view", tabindex: name === state.tab ? 0 : -1 });
    tab.onclick = () => open(name);
    return tab;
  }));
}

$("tabs").onkeydown = (event) => {
  const names = [...$("tabs").children].map((tab) => tab.id.slice(4)), i = names.indexOf(state.tab);
  const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + names.length, Home: 0, End: names.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  open(names[to % names.length]);
  $("tab-" + state.tab).focus();
};

function open(name) {
  state.tab = name;
  drawTabs();
  drawView();
}

const OF_THE_MODEL = ["rope", "memory", "batch"]; // views that need no prompt

function drawView() {
  $("tip").hidden = true;
  const [name, , draw] = VIEWS.find(([each]) => each === state.tab);
  const focused = $("view").contains(document.activeElement) ? document.activeElement.id : "";
  set($("view"), { "aria-labelledby": "tab-" + name });
  if (!state.seen && !OF_THE_MODEL.includes(name)) $("view").replaceChildren(element("p", "Run a prompt first.", { class: "dim" }));
  else {
    $("view").replaceChildren(...draw());
    if (focused) $(focused)?.focus();
  }
  if (OF_THE_MODEL.includes(name) && !state.facts && !state.saved) loadFacts();
  if (name === "batch") pollTimeline();
}

function loadFacts() {
  once("facts", async () => {
    const told = await ask("inspect/model", {});
    return Object.assign(() => { state.facts = told; }, { always: true });
  });
}

async function loadModels() {
  try {
    const key = $("key").value || kept("kukri.settings", {}).key;
    const response = await fetch("v1/models", { headers: key ? { authorization: "Bearer " + key } : {} });
    document.body.classList.toggle("locked", response.status === 401);
    if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message || `HTTP ${response.status}`);
    const models = (await response.json()).data.map((model) => model.id), chosen = kept("kukri.settings", {}).model;
    $("model").replaceChildren(...models.map((name) => element("option", name)));
    if (models.includes(chosen)) $("model").value = chosen;
    $("problem").hidden = true;
  } catch (problem) { complain(problem); }
}

// ---- what people do

$("ask").onsubmit = (event) => {
  event.preventDefault();
  const text = $("prompt").value;
  if (!text) return;
  inspect($("chat").checked ? { messages: [...state.earlier, { role: "user", content: text }] } : { prompt: text });
};
$("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("ask").requestSubmit(); }
};
$("model").onchange = () => {
  Object.assign(state, { facts: null, seen: null, timeline: { steps: [], told: null, paused: false }, memory: { context: 4096, sequences: 1, weights: 0, kv: null } });
  drawStrip();
  drawView();
};
$("key").onchange = () => { keep("kukri.settings", { ...kept("kukri.settings", {}), key: $("key").value }); loadModels(); };
matchMedia("(prefers-color-scheme: dark)").onchange = () => { drawStrip(); drawView(); }; // canvases have no variables
setInterval(pollTimeline, 1000);

function takeOver(messages) { // from the chat page, up to a message of the user
  if (!messages?.length) return;
  keep("kukri.inspect", null);
  state.earlier = messages.slice(0, -1);
  $("prompt").value = messages.at(-1).content;
  $("chat").checked = true;
  if (state.earlier.length) $("chat").parentNode.append(` behind ${state.earlier.length} earlier messages`);
}

function start() {
  const saved = $("data").textContent.trim();
  state.saved = Boolean(saved);
  drawTabs();
  if (saved) {
    const data = JSON.parse(saved);
    document.body.classList.add("saved");
    $("title").textContent = data.title || "Inspection";
    show(data.inspection, data.inspection.n_prompt ?? 1);
    Object.assign(state, { facts: data.facts || null, map: data.map || null, beams: data.beams || null });
    for (const each of data.inspection.attention || []) {
      each.rows.forEach((row, r) => {
        const part = { ...each, rows: [row], weights: each.weights.map((head) => [head[r]]) };
        state.attentionRows.set(row, [...(state.attentionRows.get(row) || []), part]);
      });
      if (each.rows.length === data.inspection.tokens.length)
        each.heads.forEach((head, h) => state.matrices.set(`${each.layer}/${head}`, each.weights[h]));
    }
  } else {
    loadModels();
    takeOver(kept("kukri.inspect", null));
  }
  drawView();
}

start();
