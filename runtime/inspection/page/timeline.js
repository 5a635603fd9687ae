// The batch: the rows of the last steps by sequence, prefill and decode, and the pages in use.
"use strict";

const MOST_STEPS = 200;

function viewTimeline() {
  const t = state.timeline, found = [];
  const pause = element("button", t.paused ? "Go on" : "Pause", { id: "pause" });
  pause.onclick = () => { t.paused = !t.paused; drawView(); };
  found.push(element("p", "Each column is a step of the model, each row a sequence, the newest step on the right. Striped: prefill; plain: decode. " +
    "The lower strip is the share of the cache's pages that are in use.", { class: "note" }), pause);
  found.push(element("div", "", { class: "scroll", id: "timeline" }, drawSteps()), element("p", "", { class: "note", id: "batch" }));
  found.at(-1).textContent = batchText();
  return found;
}

function batchText() {
  const { told, steps } = state.timeline;
  if (!told) return "…";
  if (!told.loaded) return "The model is not loaded yet.";
  const last = steps.at(-1), rate = steps.length > 1 ? `, ${number(steps.reduce((n, s) => n + s.seconds, 0) / steps.length * 1000)} ms a step on average` : "";
  return `${told.running} of ${told.slots} sequences run, ${told.waiting} wait; ${told.active_pages} of ${told.pages} pages are held by running ones, ` +
    `${told.free_pages} are free. ${steps.length} steps${rate}` + (last ? `; the last one had ${last.parts.reduce((n, p) => n + p.rows, 0)} rows.` : ". Steps appear as requests run.");
}

function drawSteps() {
  const { steps, told } = state.timeline, shownSteps = steps.slice(-MOST_STEPS);
  const sequences = [...new Set(shownSteps.flatMap((step) => step.parts.map((part) => part.sequence)))].sort((a, b) => a - b);
  const w = 6, h = 18, left = 48, width = left + w * Math.max(40, shownSteps.length) + 4, height = h * Math.max(1, sequences.length) + 46;
  const found = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, style: "max-width:none", role: "img", "aria-label": `${shownSteps.length} steps of ${sequences.length} sequences` });
  const stripes = svg("pattern", { id: "stripes", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 2, height: 4, fill: "var(--back)" }));
  found.append(svg("defs", {}, stripes));
  sequences.forEach((sequence, i) => found.append(label(`#${sequence}`, left - 6, i * h + 13, "end")));
  shownSteps.forEach((step, i) => {
    const x = left + i * w;
    for (const part of step.parts) {
      const box = { x, y: sequences.indexOf(part.sequence) * h + 1, width: w - 1, height: h - 2 };
      const group = svg("g", { "data-step": step.number, "data-sequence": part.sequence, "data-kind": part.kind, "data-rows": part.rows });
      group.append(svg("rect", { ...box, fill: KINDS[part.sequence % KINDS.length] }));
      if (part.kind === "prefill") group.append(svg("rect", { ...box, fill: "url(#stripes)" }));
      found.append(tip(group, `step ${step.number}, ${number(step.seconds * 1000)} ms\nsequence ${part.sequence}: ${part.kind}, ${part.rows} rows from position ${part.first}` +
        (part.drafted ? `\n${part.drafted} drafted, ${part.right} right` : "") + `\n${part.pages} pages`));
    }
    const used = told ? 1 - step.free_pages / told.pages : 0, y = h * Math.max(1, sequences.length) + 6;
    found.append(tip(svg("rect", { x, y: y + 24 * (1 - used), width: w - 1, height: Math.max(1, 24 * used), fill: "var(--hot)" }),
      `step ${step.number}: ${percent(used)} of the pages hold something\n${step.running} run, ${step.waiting} wait`));
  });
  found.append(label("pages", left - 6, h * Math.max(1, sequences.length) + 22, "end"));
  return found;
}

async function pollTimeline() { // once a second while the view is open
  const t = state.timeline;
  if (state.tab !== "batch" || t.paused || document.hidden || state.saved) return;
  try {
    const told = await ask("inspect/timeline", { since: t.steps.at(-1)?.number ?? -1 });
    t.told = told;
    t.steps = [...t.steps, ...told.steps].slice(-512);
    if (state.tab === "batch") {
      $("timeline")?.replaceChildren(drawSteps());
      if ($("batch")) $("batch").textContent = batchText();
    }
  } catch (problem) { complain(problem); }
}
