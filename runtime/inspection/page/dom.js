// What all views share: elements, numbers and tokens as text, colours, the tooltip.
"use strict";

const $ = (id) => document.getElementById(id);

function element(name, text = "", attributes = {}, ...children) {
  const found = document.createElement(name);
  if (text !== "") found.textContent = text;
  set(found, attributes);
  found.append(...children);
  return found;
}

function svg(name, attributes = {}, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(found, attributes);
  found.append(...children);
  return found;
}

function set(found, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) found[key] = value;
    else if (key === "style") found.style.cssText = value; // the page's policy has no style attributes
    else if (value !== undefined && value !== null && value !== false) found.setAttribute(key, value);
  }
}

// ---- text

function shown(token) { // a token as one line on which blanks can be seen
  if (!token) return "";
  if (token.bytes) return "⟨" + token.bytes + "⟩";
  return token.text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
}

function percent(p) {
  if (p === null || p === undefined) return "";
  const value = 100 * p;
  if (value > 99.95) return "100 %"; // not 99.97: two places would be a promise
  return value >= 9.995 ? value.toFixed(1) + " %" : value >= 0.01 ? value.toFixed(2) + " %" : value > 0 ? "<0.01 %" : "0 %";
}

function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 999.5) return unit === "B" ? `${Math.round(n)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

function number(x, digits = 3) {
  if (x === null || x === undefined) return "–";
  return Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(digits)));
}

// ---- colours: one hue by lightness for amounts, which every eye can tell; Okabe and Ito's palette for kinds

const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8a8a8a"];

function heat(share) { // the background for an amount between 0 and 1, and a colour for text on it
  const amount = Math.max(0, Math.min(1, share || 0));
  const middle = matchMedia("(prefers-color-scheme: dark)").matches ? 0.55 : 0.75; // where both colours of text are as easy to read
  const text = amount > middle ? "var(--back)" : "var(--text)";
  return `background:color-mix(in oklab, var(--hot) ${Math.round(100 * amount)}%, var(--back));color:${text}`;
}

function palette() { // for canvases: the background and the hottest colour, as numbers
  const probe = document.body.appendChild(element("i")), found = [];
  for (const name of ["--back", "--hot"]) {
    probe.style.color = `var(${name})`;
    found.push(getComputedStyle(probe).color.match(/\d+(\.\d+)?/g).slice(0, 3).map(Number));
  }
  probe.remove();
  return found;
}

function paint(canvas, values, width, height, scale = Math.sqrt) { // a pixel for each value between 0 and 1
  const [cold, hot] = palette(), context = canvas.getContext("2d");
  canvas.width = width;
  canvas.height = height;
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const share = scale(Math.max(0, Math.min(1, values(i % width, Math.floor(i / width)) || 0)));
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = cold[c] + share * (hot[c] - cold[c]);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// ---- the tooltip, for pointers and for the keyboard

function tip(node, text) {
  const show = (x, y) => {
    $("tip").textContent = typeof text === "function" ? text() : text;
    $("tip").hidden = !$("tip").textContent;
    const box = $("tip").getBoundingClientRect();
    $("tip").style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 8)) + "px";
    $("tip").style.top = (y + 16 + box.height > innerHeight ? y - box.height - 8 : y + 16) + "px";
  };
  node.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  node.addEventListener("focus", () => { const box = node.getBoundingClientRect(); show(box.left, box.bottom - 12); });
  node.addEventListener("blur", () => { $("tip").hidden = true; });
  return node;
}

function table(heads, rows, numbers = []) { // cells are texts or nodes; `numbers` are the columns of numbers
  const found = element("table"), head = found.appendChild(element("thead")).appendChild(element("tr"));
  const body = found.appendChild(element("tbody"));
  heads.forEach((text, i) => head.append(element("th", text, { scope: "col", class: numbers.includes(i) && "number" })));
  for (const cells of rows) {
    const row = body.appendChild(element("tr"));
    cells.forEach((cell, i) => {
      const made = row.appendChild(element("td", "", { class: numbers.includes(i) && "number" }));
      made.append(cell ?? "");
    });
  }
  return found;
}

function slider(label, value, { min, max, step, show = String, id }, change) {
  const told = element("output", show(value));
  const input = element("input", "", { type: "range", min, max, step, value, id, "aria-label": label });
  input.oninput = () => { told.textContent = show(Number(input.value)); change(Number(input.value)); };
  return element("label", label, {}, told, input);
}

function choice(label, values, value, change, id) {
  const found = element("select", "", { "aria-label": label, id });
  for (const each of values) {
    const [key, text] = Array.isArray(each) ? each : [each, each];
    found.append(element("option", String(text), { value: key, selected: String(key) === String(value) && "selected" }));
  }
  found.onchange = () => change(found.value);
  return element("label", label + " ", {}, found);
}
