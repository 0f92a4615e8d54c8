// Draws the charts of a page from the JSON beside each, and adds what forms and keys need. Nothing here fetches.
"use strict";
const kinds = {
  lines(one, width) {
    return { width, height: 220, marginLeft: 48, color: { legend: many(one) }, y: axis(one), x: whole("round"), marks: [
      Plot.lineY(one.rows, { x: "x", y: "y", stroke: "series", strokeWidth: 1.6 }),
      Plot.dot(one.rows, { x: "x", y: "y", fill: "series", r: 2, tip: true }) ] };
  },
  stack(one, width) {
    return { width, height: 220, marginLeft: 48, color: { legend: true, ...(one.order ? { domain: one.order, range: one.colours } : {}) }, x: { label: "round", tickFormat: "d" }, y: { grid: true, label: null }, marks: [
      Plot.barY(one.rows, { x: "x", y: "y", fill: "series", order: one.order || undefined, tip: true }), Plot.ruleY([0]) ] };
  },
  heat(one, width) {
    return { width, marginLeft: 130, marginTop: 30, color: { scheme: "YlGn", domain: [0, 1], legend: true, label: "share" }, x: { label: "round", axis: "bottom" },
      y: { label: null }, fx: { label: null }, marks: [ Plot.cell(one.rows, { x: "round", y: "category", fx: "component", fill: "share", inset: .5, tip: true }) ] };
  },
  scatter(one, width) {
    return { width, height: 360, marginLeft: 48, color: { legend: true }, x: { label: "mean reward", grid: true }, y: { label: "variance", grid: true }, marks: [
      Plot.dot(one.rows, { x: "reward_mean", y: "reward_var", stroke: "reason", r: 3, href: d => one.link + encodeURIComponent(d.task_id),
        channels: { task: "task_id", category: "category", right: d => `${d.n_exact} of ${d.n}`, shots: "shots" }, tip: true }) ] };
  },
  bars(one, width) {
    const order = ["unread", "form", "tool", "parameters", "values", "right"];
    return { width, marginLeft: 150, color: { legend: true, domain: order, range: ["#7b4fb5", "#4f74b5", "#c0392b", "#e07b39", "#e8b23a", "#9bbf9b"] }, x: { label: "samples", grid: true },
      y: { label: null, domain: [...new Set(one.rows.map(d => d.tool))] }, marks: [ Plot.barX(one.rows, { y: "tool", x: "n", fill: "kind", order, tip: true }) ] };
  },
  dots(one, width) {
    return { width, height: 200, marginLeft: 48, color: { legend: true, label: "exact" }, x: whole("round"), y: { label: "reward", grid: true }, marks: [
      Plot.dot(one.rows, Plot.dodgeX("middle", { x: "x", y: "y", fill: d => String(d.exact), symbol: d => d.shots ? "few-shot" : "zero-shot", r: 4,
        href: d => one.link + encodeURIComponent(d.id), tip: true, channels: { id: "id", shots: "shots" } })) ] };
  },
};
const many = one => new Set(one.rows.map(d => d.series)).size > 1;
const axis = one => ({ grid: true, label: null, ...(one.unit === "share" ? { percent: false, domain: undefined, tickFormat: d => `${Math.round(d * 1000) / 10}%` } : {}) });
const whole = label => ({ label, tickFormat: d => Number.isInteger(d) ? String(d) : "" });
function draw() {
  for (const figure of document.querySelectorAll("figure.chart")) {
    const one = JSON.parse(figure.querySelector("script").textContent), place = figure.querySelector(".plot");
    place.replaceChildren(Plot.plot({ ...kinds[one.kind](one, Math.max(260, place.clientWidth)), style: { background: "transparent", color: "inherit" } }));
  }
}
draw();
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
for (const select of document.querySelectorAll("select[data-submit]")) select.addEventListener("change", () => select.form.submit());
for (const button of document.querySelectorAll("button[data-copy]")) button.addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "copied"; } catch { button.textContent = "select it by hand"; }
});
addEventListener("keydown", event => { // n and p turn pages and rounds, / goes to the where box
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { const box = document.querySelector("input[name=where]"); if (box) { event.preventDefault(); box.focus(); } }
  const link = { n: "a[rel=next]", p: "a[rel=previous]" }[event.key];
  if (link) document.querySelector(link)?.click();
});
