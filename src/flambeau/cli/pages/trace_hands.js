// What a person does: hovering, zooming, moving, selecting, searching; the tables beneath.
const tip = $("tip"), stage = $("timeline");
let drag = null;

function element(tag, text, parent, kind) {
  const e = document.createElement(tag);
  if (text !== undefined && text !== null) e.textContent = text;
  if (kind) e.className = kind;
  if (tag === "a") { e.tabIndex = 0; e.setAttribute("role", "button"); e.onkeydown = event => { if (event.key === "Enter") e.click(); }; }
  if (parent) parent.append(e);
  return e;
}

// -- where the mouse is
function rowAt(y) {
  const at = y - RULER + scroll;
  return y < RULER ? null : rows.find(row => at >= row.y && at < row.y + row.height) || null;
}
function sliceAt(row, t, slack) {
  if (!row || !row.list) return -1;
  const list = row.list, n = firstAfter(list, t - slack);
  let best = -1;
  for (let m = n; m < list.length && begin[list[m]] <= t + slack && m < n + 400; m++)
    if (begin[list[m]] <= t && t <= end[list[m]]) return list[m]; else if (best < 0) best = list[m];
  return best;
}
function place(e) { const r = stage.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top, r.width]; }

// -- hovering
function show(e, fill) {
  tip.replaceChildren();
  fill(tip);
  tip.style.display = "block";
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = Math.max(8, Math.min(e.clientX + 14, window.innerWidth - w - 8)) + "px";
  tip.style.top = (e.clientY + h + 22 > window.innerHeight ? Math.max(8, e.clientY - h - 12) : e.clientY + 16) + "px";
}
function hide() { tip.style.display = "none"; }

function title(i) {
  const kind = kindOf(i), name = nameOf(i);
  if (kind === "wait") return laneOf(i).device < 0 ? "lets a stream wait" : "the stream waits";
  return kind === "record" ? "records an event" : name;
}
function target(i) { const lane = data.lanes[columns.target[i]]; return lane ? `, about cuda:${lane.device}, ${lane.name}` : ""; }
function describe(into, i) {
  element("b", title(i), into);
  element("div", `${time(columns.length[i])}, from ${moment(begin[i])} to ${moment(end[i])}`, into);
  element("div", laneName(i) + target(i), into);
  if (columns.bytes[i]) element("div", size(columns.bytes[i]) + rate(i), into);
  if (data.texts[columns.detail[i]]) element("div", data.texts[columns.detail[i]], into);
  const line = lineOf(i);
  if (line) element("code", line[1] ? `${line[0]}   ${line[1]}` : line[0], into);
  if (data.texts[columns.why[i]]) element("div", data.texts[columns.why[i]], into);
  for (const a of waitedFor(i).slice(0, 4)) element("div", `after ${title(a.from)} on ${laneName(a.from)}, which ended at ${moment(end[a.from])}`, into);
  for (const n of racesOf.get(i) || []) element("div", `race ${n + 1}: nothing orders it and ${other(n, i)}`, into, "alarm");
}
function other(n, i) { const side = data.races[n].sides.find(s => s.slice !== i) || data.races[n].sides[0]; return `${side.operator} on ${side.stream} at ${side.place}`; }

function hover(e) {
  const [x, y, width] = place(e), row = rowAt(y), t = timeAt(x, width), slack = 2 * (view[1] - view[0]) / width;
  const before = hovered;
  cursor = x >= LEFT ? x : null;
  hovered = x >= LEFT ? sliceAt(row, t, slack) : -1;
  if (hovered >= 0) show(e, into => describe(into, hovered));
  else if (row && x < LEFT && row.label) show(e, into => { element("b", row.label, into); if (row.sub) element("div", row.sub, into); if (row.created) element("div", `created at ${row.created}`, into); });
  else if (row && row.type === "memory" && x >= LEFT) show(e, into => hoverMemory(into, row, t));
  else if (row && row.type === "ranges" && x >= LEFT) hoverRange(e, row, t, y);
  else hide();
  if (before !== hovered || cursor !== null) redraw();
}
function hoverMemory(into, row, t) {
  let n = 0;
  while (n + 1 < row.curve.at.length && row.curve.at[n + 1] <= t) n++;
  element("b", row.label, into);
  element("div", row.curve.at[0] <= t ? `${size(row.curve.used[n])} in use, ${size(row.curve.reserved[n])} reserved at ${moment(t, perPixelOf(stage.clientWidth))}` : "none yet", into);
}
function hoverRange(e, row, t, y) {
  const depth = Math.floor((y - topOf(row) - 3) / 19), found = row.ranges.find(r => !r.mark && r.depth === depth && r.begin <= t && t <= r.end)
    || row.ranges.find(r => r.mark && Math.abs(r.begin - t) < 6 * (view[1] - view[0]) / stage.clientWidth);
  if (!found) return hide();
  show(e, into => { element("b", found.text, into); element("div", found.mark ? `at ${moment(found.begin)}` : `${time(found.end - found.begin)}, from ${moment(found.begin)} to ${moment(found.end)}`, into); });
}

// -- moving
function look(from, to) {
  const all = whole[1] - whole[0], pad = all * 0.02, span = Math.min(Math.max(to - from, 20), all + 2 * pad);
  from = Math.min(Math.max(from, whole[0] - pad), whole[1] + pad - span);
  view = [from, from + span];
  redraw();
}
function zoom(by, f = 0.5) { const t = view[0] + f * (view[1] - view[0]), span = (view[1] - view[0]) * by; look(t - f * span, t + (1 - f) * span); }
function pan(share) { const by = share * (view[1] - view[0]); look(view[0] + by, view[1] + by); }
function reveal(i) {  // bring a slice into the picture
  const row = rows[rowOf[i]], room = stageHeight() - RULER;
  if (row && (row.y < scroll || row.y + row.height > scroll + room)) scroll = row.y - room / 2;
  const wide = columns.length[i], span = view[1] - view[0];
  if (begin[i] < view[0] || end[i] > view[1] || wide < span / 400) { const room = Math.max(Math.min(span, wide * 40), 100); look((begin[i] + end[i] - room) / 2, (begin[i] + end[i] + room) / 2); }
  redraw();
}
function zoomTo(...slices) {
  const from = Math.min(...slices.map(i => begin[i])), to = Math.max(...slices.map(i => end[i])), pad = Math.max((to - from) * 0.6, 50);
  look(from - pad, to + pad);
  const low = Math.min(...slices.map(i => rows[rowOf[i]].y));
  if (low < scroll || low > scroll + stageHeight() - 100) scroll = low - 60;
}
const fitAll = () => look(whole[0] - (whole[1] - whole[0]) * 0.01, whole[1] + (whole[1] - whole[0]) * 0.01);

stage.addEventListener("wheel", e => {
  e.preventDefault();
  const [x, , width] = place(e);
  if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) return pan((e.deltaX || e.deltaY) / width);
  if (x < LEFT) { scroll += e.deltaY; return redraw(); }
  zoom(e.deltaY > 0 ? 1.25 : 0.8, (x - LEFT) / (width - LEFT - RIGHT));
}, { passive: false });
stage.onpointerdown = e => { const [x, y] = place(e); drag = { x, y, view: [...view], scroll, moved: false }; stage.setPointerCapture(e.pointerId); hide(); };
stage.onpointermove = e => {
  if (!drag) return hover(e);
  const [x, y, width] = place(e), by = (drag.x - x) / (width - LEFT - RIGHT) * (drag.view[1] - drag.view[0]);
  drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 4;
  if (!drag.moved) return;
  scroll = drag.scroll + drag.y - y;
  look(drag.view[0] + by, drag.view[1] + by);
};
stage.onpointerup = e => { const still = drag && !drag.moved; drag = null; if (still) { hover(e); select(hovered); } };
stage.onpointerleave = () => { if (!drag) { hovered = -1; cursor = null; hide(); redraw(); } };
stage.ondblclick = e => { hover(e); if (hovered >= 0) zoomTo(hovered); };
$("overview").onpointerdown = $("overview").onpointermove = e => {
  if (e.type === "pointermove" && !(e.buttons & 1)) return;
  const r = $("overview").getBoundingClientRect(), t = whole[0] + (e.clientX - r.left - LEFT) / (r.width - LEFT - RIGHT) * (whole[1] - whole[0]), half = (view[1] - view[0]) / 2;
  look(t - half, t + half);
};
document.onkeydown = e => {
  if (e.target.tagName === "INPUT" && e.target.type === "search" || e.ctrlKey || e.metaKey || e.altKey) return;
  const keys = { w: () => zoom(0.7), s: () => zoom(1.4), a: () => pan(-0.2), d: () => pan(0.2), f: fitAll, ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
    ArrowUp: () => { scroll -= 60; redraw(); }, ArrowDown: () => { scroll += 60; redraw(); }, Escape: () => select(-1), n: () => next(1), p: () => next(-1), "/": () => $("search").focus() };
  const found = keys[e.key] || (e.key.length === 1 && keys[e.key.toLowerCase()]);
  if (found && (e.target === document.body || e.target === stage || e.key === "/")) { e.preventDefault(); found(); }
};

// -- selecting
function go(parent, text, i) { const a = element("a", text, parent, "go"); a.onclick = () => { select(i); reveal(i); }; return a; }
function fact(list, name, value) { if (!value) return null; element("dt", name, list); return element("dd", value === true ? "" : value, list); }
function next(by) {  // select the bar after or before the selected one on its lane; at first the first of a stream
  const row = rows[rowOf[selected]] || rows.find(row => row.type === "stream" && row.list.length);
  if (!row) return;
  const at = selected < 0 ? 0 : row.list.indexOf(selected) + by;
  if (at >= 0 && at < row.list.length) { select(row.list[at]); reveal(selected); }
}
function select(i) {
  selected = i;
  const into = $("selected");
  into.replaceChildren();
  element("h2", i < 0 ? "Selected" : title(i), into);
  if (i < 0) element("p", "Click a bar.", into, "soft");
  else facts(element("dl", null, into), i);
  redraw();
}
function facts(list, i) {
  const line = lineOf(i), cause = columns.cause[i], word = j => `${title(j)}, ${laneName(j)}, at ${moment(begin[j])}`;
  fact(list, "what", KINDS[kindOf(i)] || kindOf(i));
  fact(list, "where", laneName(i) + target(i) + (laneOf(i).created ? `, created at ${laneOf(i).created}` : ""));
  fact(list, "time", `${time(columns.length[i])}, from ${moment(begin[i])} to ${moment(end[i])}`);
  fact(list, "bytes", columns.bytes[i] ? `${columns.bytes[i].toLocaleString("en")} = ${size(columns.bytes[i])}${rate(i)}` : "");
  fact(list, "operands", data.texts[columns.detail[i]]);
  if (line) { const into = fact(list, "line", line[0]); if (line[1]) element("code", line[1], into, "code"); }
  fact(list, "reason", data.texts[columns.why[i]]);
  if (cause >= 0) go(fact(list, "given by", true), word(cause), cause);
  links(list, "gave", (given.get(i) || []).map(j => [word(j), j]));
  links(list, "waited for", waitedFor(i).map(a => [word(a.from), a.from]));
  links(list, "waits for it", (arrowsFrom.get(i) || []).map(a => [word(a.to), a.to]));
  for (const n of racesOf.get(i) || []) fact(list, "race", `${n + 1}: nothing orders it and ${other(n, i)}`).style.color = "var(--bad)";
  const into = fact(list, "look", true);
  element("a", "zoom to it", into, "go").onclick = () => zoomTo(i);
}
function links(list, name, found) {
  if (!found.length) return;
  const into = fact(list, name, true);
  for (const [text, j] of found.slice(0, 8)) go(element("div", null, into), text, j);
  if (found.length > 8) element("div", `and ${found.length - 8} more`, into, "soft");
}

// -- searching
function found(step) {
  if (!hitList.length) return;
  hitAt = (hitAt + step + hitList.length) % hitList.length;
  select(hitList[hitAt]); reveal(hitList[hitAt]); showHits();
}
function showHits() { $("hits").textContent = hits ? (hitAt >= 0 ? `${hitAt + 1} of ` : "") + plural(hitList.length, "hit") : ""; }
$("search").oninput = () => { search($("search").value); showHits(); redraw(); };
$("search").onkeydown = e => { if (e.key === "Enter") found(e.shiftKey ? -1 : 1); if (e.key === "Escape") { $("search").value = ""; $("search").oninput(); $("search").blur(); } };
$("before").onclick = () => found(-1);
$("after").onclick = () => found(1);
$("in").onclick = () => zoom(0.6);
$("out").onclick = () => zoom(1.6);
$("fit").onclick = fitAll;
$("color").onchange = () => { backdrop = null; showKeys(); redraw(); };
$("waits").onchange = $("launches").onchange = $("path").onchange = redraw;
$("theme").onclick = () => setTheme(!isDark());
function setTheme(dark) { document.documentElement.classList.toggle("dark", dark); palette(); backdrop = null; showKeys(); redraw(); }

// -- the tables beneath
function showFigures() {
  let work = 0, stalls = 0, blocked = 0;
  for (let i = 0; i < count; i++) { const kind = kindOf(i); if (isWork(kind)) work++; else if (kind === "wait" && laneOf(i).device >= 0) stalls += columns.length[i]; else if (kind === "sync") blocked += columns.length[i]; }
  const streams = rows.filter(row => row.type === "stream").length, into = $("figures");
  for (const [value, name, bad] of [[time(whole[1] - whole[0]), data.simulated ? "of simulated time" : "of time"], [work.toLocaleString("en"), "commands"],
    [String(streams), `streams of ${plural(rows.filter(r => r.type === "head").length - 1, "device")}`], [time(stalls), "streams waited for streams"], [time(blocked), "the host synchronized"],
    [String(data.races.length), data.races.length === 1 ? "race" : data.checked ? "races" : "races: not detected, see --races", data.races.length]]) {
    const box = element("div", null, into, bad ? "figure bad" : "figure");
    element("b", value, box); element("span", name, box);
  }
  $("note").textContent = data.left_out ? `The last ${plural(data.left_out, "slice")} are left out: a trace for Perfetto (.json) has them all.` : "";
}
function showKeys() {
  const into = $("keys"), there = new Set(columns.kind);
  into.replaceChildren();
  if ($("color").value === "kind") data.kinds.forEach((kind, n) => { if (there.has(n) && KINDS[kind]) key(into, kind === "wait" ? "transparent" : `var(--${kind})`, KINDS[kind], kind === "wait"); });
  if (data.races.length) key(into, "var(--bad)", "race");
}
function key(into, color, text, dashed) {
  const span = element("span", null, into), i = element("i", null, span);
  i.style.background = color;
  if (dashed) i.style.cssText += "height:0;border-radius:0;width:16px;border-top:2px dashed var(--wait);vertical-align:3px";
  span.append(text);
}
function showRaces() {
  const into = $("races");
  $("found").hidden = !data.races.length;  // its place is for the others
  if (!data.races.length) $("left").append($("why"));
  data.races.slice(0, 100).forEach((race, n) => {
    const box = element("div", null, into, "race"), head = element("p", null, box);
    element("b", `${n + 1}. `, head); head.append(race.head + (race.count > 1 ? ` (${race.count} times)` : ""));
    for (const side of race.sides) {
      const p = element("p", null, box);
      p.append(`${side.kind} ${side.what || "bytes"} on ${side.stream}: `);
      if (side.slice >= 0) go(p, side.place, side.slice); else p.append(side.place);
      if (side.source) element("code", side.source, p, "code");
    }
    element("p", race.fix, box, "fix");
    if (race.note) element("p", race.note, box, "soft");
    const both = race.sides.map(side => side.slice).filter(i => i >= 0);
    if (both.length) element("a", "show both", box, "go").onclick = () => { select(both[both.length - 1]); zoomTo(...both); window.scrollTo({ top: 0 }); };
  });
  if (data.races.length > 100) element("p", `${data.races.length - 100} more are not listed.`, into, "soft");
}
function showTable() {
  const sums = new Map();
  for (let i = 0; i < count; i++) {
    const kind = kindOf(i);
    if (!isWork(kind) || laneOf(i).device < 0) continue;
    const sum = sums.get(columns.name[i]) || { name: nameOf(i), i, n: 0, total: 0 };
    sum.n++; sum.total += columns.length[i]; sums.set(columns.name[i], sum);
  }
  const all = [...sums.values()].sort((a, b) => b.total - a.total), total = all.reduce((s, x) => s + x.total, 0), table = element("table", null, $("table")), head = element("tr", null, table);
  for (const text of ["operator", "time", "share", "times", "each"]) element("th", text, head);
  for (const sum of all.slice(0, 14)) {
    const tr = element("tr", null, table), first = element("td", null, tr);
    element("i", null, first).style.background = `var(--${kindOf(sum.i)}, var(--kernel))`;
    element("a", sum.name, first, "go").onclick = () => { $("search").value = sum.name; $("search").oninput(); };
    for (const text of [time(sum.total), (100 * sum.total / total).toFixed(1) + " %", sum.n.toLocaleString("en"), time(sum.total / sum.n)]) element("td", text, tr);
  }
  if (!all.length) element("p", "The devices did nothing.", $("table"), "soft");
}

function showPath() {
  critical ||= criticalPath();
  const all = [...critical.spent].sort((a, b) => b[1] - a[1]), total = all.reduce((sum, [, ns]) => sum + ns, 0), into = $("bounds");
  const names = { ...KINDS, memory: "memory calls", kernel: "kernels", give: "kernel launches and copies", record: "calls that record events", wait: "calls that let streams wait", program: "Python and dispatch", latency: "latency of commands" };
  for (const [kind, ns] of all) {
    const row = element("div", null, into, "bound");
    element("span", names[kind] || kind, row);
    element("i", null, element("span", null, row, "share")).style.cssText = `width:${100 * ns / total}%;background:var(--${kind}, var(--line))`;
    element("span", `${(100 * ns / total).toFixed(1)} %`, row);
    element("span", time(ns), row);
  }
  if (!all.length) return void element("p", "Nothing ran.", into, "soft");
  const [kind, ns] = all[0];
  element("p", `${2 * ns > total ? "Most" : "The largest part"} of the run's ${time(total)} is bound by ${names[kind] || kind}: ${(100 * ns / total).toFixed(0)} % of the critical path.`, $("sentence"));
}

window.onresize = () => { backdrop = null; redraw(); };
if (window.matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
palette(); showFigures(); showKeys(); showRaces(); showTable(); showPath(); fitAll();
$("loading")?.remove();
