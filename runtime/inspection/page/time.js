// The phases of the answer: how long they took, what they read and computed.
"use strict";

function viewTime() {
  const time = state.seen.timing;
  if (!time || !time.new_tokens) return [element("p", "The model has written nothing: let it answer with some tokens.")];
  const phases = [["prefill", time.prefill_seconds, time.prefilled_tokens, KINDS[0]], ["decode", time.decode_seconds, time.decode_tokens, KINDS[1]]];
  const whole = time.prefill_seconds + time.decode_seconds || 1, stack = element("div", "", { class: "stack", role: "img", "aria-label": "Shares of the time" });
  for (const [name, seconds, , colour] of phases) stack.append(tip(element("div", "", { style: `width:${(100 * seconds) / whole}%;background:${colour}` }), `${name}: ${number(1000 * seconds)} ms`));
  const rows = phases.map(([name, seconds, tokens, colour]) => [
    element("span", "", {}, element("span", "", { class: "key-of", style: `background:${colour}` }), name),
    String(tokens), number(1000 * seconds), seconds ? number(tokens / seconds) : "",
    seconds ? number((2e-9 * time.multiply_adds * tokens) / seconds) : "",
    seconds ? bytes((name === "prefill" ? time.prefill_steps : time.decode_steps) * time.bytes_per_step / seconds) + "/s" : ""]);
  const found = table(["", "tokens", "ms", "tokens/s", "GFLOP/s", "weights and cache read"], rows, [1, 2, 3, 4, 5]);
  found.id = "time-table";
  const steps = Math.max(1, time.prefill_steps), intensity = (tokens) => number((2 * time.multiply_adds * tokens) / time.bytes_per_step);
  return [stack, found,
    element("p", `A step reads ${bytes(time.bytes_per_step)} of weights and cache, and a token takes ${number(time.multiply_adds / 1e6)} million multiplications. ` +
      `In prefill ${number(time.prefilled_tokens / steps)} tokens shared a step, ${intensity(time.prefilled_tokens / steps)} operations for each byte: arithmetic bounds long prompts. ` +
      `In decode each token had its own, ${intensity(1)} operations for each byte: memory bounds it.`),
    element("p", (time.cached_tokens ? `${time.cached_tokens} tokens of the prompt were in the cache already. ` : "") + "The first token comes out of prefill, and is not counted as decode.", { class: "note" })];
}
