// Drawing: bars, stalls, arrows, races, ranges, curves. Never more bars than pixels, however long the run.
let LEFT = 216;  // of the rows' names: less on narrow screens
const RULER = 26, RIGHT = 10, MOST_ARROWS = 600, FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
let view = [...whole], scroll = 0, hovered = -1, selected = -1, cursor = null, colors = {}, wanted = false;

function palette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "paper", "lane", "edge", "bad", "accent", "range", "rangeink", "used", "reserved", "mark", "kernel", "copy_in", "copy_out", "copy",
    "fill", "host_call", "collective", "graph", "wait", "give", "sync", "memory", "ask", "record"]) colors[name] = style.getPropertyValue("--" + name).trim();
}
const isDark = () => document.documentElement.classList.contains("dark");

function colorOf(i) {
  const by = $("color").value, kind = kindOf(i);
  if (by === "kind" || !isWork(kind) && by === "name") return colors[kind] || colors.kernel;
  const key = by === "name" ? columns.name[i] : columns.line[i];
  return `hsl(${((key * 137.508 + 214) % 360).toFixed(0)} ${isDark() ? "45% 52%" : "55% 45%"})`;
}

function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [g, width, height];
}
const stageHeight = () => Math.max(220, Math.min(tall + RULER + 4, Math.round(window.innerHeight * 0.62)));
const across = (t, width) => LEFT + (t - view[0]) / (view[1] - view[0]) * (width - LEFT - RIGHT);
const perPixelOf = width => (view[1] - view[0]) / (width - LEFT - RIGHT);
const timeAt = (x, width) => view[0] + (x - LEFT) / (width - LEFT - RIGHT) * (view[1] - view[0]);
const widths = new Map();
function clipped(g, text, room) {
  if (room < 14) return "";
  const key = g.font + text, wide = widths.get(key) ?? g.measureText(text).width;
  widths.set(key, wide);
  if (wide <= room) return text;
  const letters = Math.floor(room / wide * text.length) - 1;
  return letters > 1 ? text.slice(0, letters) + "…" : "";
}

function redraw() { if (!wanted) { wanted = true; requestAnimationFrame(() => { wanted = false; draw(); }); } }

function draw() {
  LEFT = Math.min(216, Math.round($("timeline").clientWidth * 0.3));
  const [g, width, height] = fit($("timeline"), stageHeight());
  scroll = Math.max(0, Math.min(scroll, tall + RULER + 4 - height));
  g.fillStyle = colors.paper; g.fillRect(0, 0, width, height);
  drawGround(g, width, height);
  g.save(); g.beginPath(); g.rect(LEFT, RULER, width - LEFT - RIGHT, height - RULER); g.clip();
  for (const row of visibleRows(height)) drawRow(g, row, width);
  if ($("waits").checked) drawArrows(g, width, height);
  if ($("launches").checked) drawLaunches(g, width, height);
  if ($("path").checked) drawPath(g, width, height);
  drawFocus(g, width);
  drawRaces(g, width);
  g.restore();
  drawRuler(g, width, height);
  drawScrollbar(g, width, height);
  drawOverview();
}

function visibleRows(height) {
  return rows.filter(row => row.y + row.height > scroll && row.y < scroll + height - RULER);
}
const topOf = row => RULER + row.y - scroll;

function drawGround(g, width, height) {
  g.textBaseline = "middle"; g.textAlign = "left";
  for (const row of visibleRows(height)) {
    const y = topOf(row);
    if (row.type === "head") {
      g.fillStyle = colors.ink; g.font = `650 13px ${FONT}`; g.fillText(row.label, 2, y + 16);
      const at = g.measureText(row.label).width + 12;
      g.fillStyle = colors.soft; g.font = `12px ${FONT}`; g.fillText(row.sub, at, y + 16);
      continue;
    }
    g.fillStyle = colors.lane; g.fillRect(LEFT, y + 2, width - LEFT - RIGHT, row.height - 4);
    g.fillStyle = colors.ink; g.font = `12.5px ${FONT}`;
    const low = row.height < 30 || !row.sub;
    g.fillText(clipped(g, row.label, LEFT - 16), 12, y + (low ? row.height / 2 : row.height / 2 - 7));
    if (row.sub && row.height >= 30) { g.fillStyle = colors.soft; g.font = `11px ${FONT}`; g.fillText(clipped(g, row.sub, LEFT - 16), 12, y + row.height / 2 + 8); }
  }
}

function drawRow(g, row, width) {
  if (row.type === "memory") drawMemory(g, row, width);
  else if (row.type === "ranges") drawRanges(g, row, width);
  else if (row.list) drawBars(g, row, width, topOf(row) + (row.type === "engine" ? 4 : row.type === "host" ? 3 : 5), row.height - (row.type === "engine" ? 8 : row.type === "host" ? 6 : 10));
}

// Bars thinner than a pixel share a column: the next one drawn is the first that ends past it.
function drawBars(g, row, width, y, height) {
  const list = row.list, engine = row.type === "engine";
  g.font = `11.5px ${FONT}`; g.textAlign = "left";
  for (let n = firstAfter(list, view[0]); n < list.length && begin[list[n]] <= view[1];) {
    const i = list[n], x0 = across(begin[i], width), x1 = across(end[i], width), wide = x1 - x0;
    g.globalAlpha = (hits && !hits[i] ? 0.16 : 1) * (engine ? 0.72 : 1);
    if (wide < 1) {
      const next = firstAfter(list, timeAt(Math.floor(x0) + 1, width), n + 1);
      let shown = i;
      if (hits) for (let m = n; m < next; m++) if (hits[list[m]]) { shown = list[m]; g.globalAlpha = 1; break; }
      g.fillStyle = colorOf(shown);
      g.fillRect(Math.floor(x0), y, 1.2, height);
      n = next;
      continue;
    }
    const from = Math.max(x0, LEFT - 4), to = Math.min(x1, width);
    if (kindOf(i) === "wait" && row.type === "stream") drawStall(g, from, y, to - from, height);
    else {
      g.fillStyle = colorOf(i);
      g.beginPath(); g.roundRect(from, y, Math.max(to - from - (wide > 4 ? 0.7 : 0), 0.8), height, Math.min(3, wide / 3)); g.fill();
      const text = engine ? "" : clipped(g, nameOf(i), to - Math.max(from, LEFT) - 8);
      if (text) { g.fillStyle = row.type === "host" && !isDark() && kindOf(i) === "record" ? colors.ink : "#fff"; g.fillText(text, Math.max(from, LEFT) + 5, y + height / 2 + 0.5); }
    }
    n++;
  }
  g.globalAlpha = 1;
}

// A stream that stands still: a dashed line between two ends.
function drawStall(g, x, y, wide, height) {
  const middle = Math.round(y + height / 2) + 0.5;
  g.strokeStyle = colors.wait; g.lineWidth = 1.4; g.setLineDash([3, 3]);
  g.beginPath(); g.moveTo(x, middle); g.lineTo(x + wide, middle); g.stroke(); g.setLineDash([]);
  g.beginPath(); g.moveTo(x + 0.7, middle - 5); g.lineTo(x + 0.7, middle + 5); g.moveTo(x + wide - 0.7, middle - 5); g.lineTo(x + wide - 0.7, middle + 5); g.stroke();
  if (wide > 64) {
    g.fillStyle = colors.lane; g.fillRect(x + wide / 2 - 19, middle - 8, 38, 16);
    g.fillStyle = colors.soft; g.textAlign = "center"; g.fillText("waits", x + wide / 2, middle); g.textAlign = "left";
  }
}

function drawRanges(g, row, width) {
  g.font = `11.5px ${FONT}`; g.textAlign = "left";
  let last = -1;
  for (const r of row.ranges) {
    if (r.end < view[0] || r.begin > view[1]) continue;
    const x0 = Math.max(across(r.begin, width), LEFT - 4), x1 = Math.min(across(r.end, width), width), y = topOf(row) + 3 + Math.max(r.depth, 0) * 19;
    if (r.mark) {
      g.fillStyle = colors.mark; g.beginPath(); g.moveTo(x0, y); g.lineTo(x0 + 5, y + 8); g.lineTo(x0 - 5, y + 8); g.fill();
      continue;
    }
    if (x1 - x0 < 1 && Math.floor(x0) * 64 + r.depth === last) continue;
    last = Math.floor(x0) * 64 + r.depth;
    g.fillStyle = colors.range; g.beginPath(); g.roundRect(x0, y, Math.max(x1 - x0 - 0.7, 1), 17, 3); g.fill();
    g.fillStyle = colors.rangeink; g.fillText(clipped(g, r.text, x1 - Math.max(x0, LEFT) - 8), Math.max(x0, LEFT) + 5, y + 9);
  }
}

function drawMemory(g, row, width) {
  const { at, used, reserved } = row.curve, y = topOf(row), low = y + row.height - 4, room = row.height - 12;
  const most = Math.max(1, row.reserved, row.used), up = v => low - v / most * room;
  const path = values => {
    g.beginPath(); g.moveTo(across(Math.max(view[0], whole[0]), width), low);
    let before = 0;
    for (let n = 0; n < at.length; n++) {
      const next = at[n + 1] ?? Infinity;
      if (next < view[0]) { before = values[n]; continue; }
      if (at[n] > view[1]) break;
      const x = Math.max(across(at[n], width), LEFT - 2);
      g.lineTo(x, up(before)); g.lineTo(x, up(values[n])); before = values[n];
    }
    const to = across(Math.min(view[1], whole[1]), width);
    g.lineTo(to, up(before)); g.lineTo(to, low);
  };
  path(used); g.fillStyle = colors.used + "38"; g.fill(); g.strokeStyle = colors.used; g.lineWidth = 1.4; g.stroke();
  path(reserved); g.strokeStyle = colors.reserved; g.stroke();
}

// -- arrows
const middleOf = i => { const row = rows[rowOf[i]]; return topOf(row) + row.height / 2; };
function arrow(g, x1, y1, x2, y2, color, wide) {
  const bend = Math.max(Math.abs(x2 - x1) / 2, Math.min(12, Math.abs(x2 - x1) + 4)), turn = Math.sign(y2 - y1) * 4;
  g.strokeStyle = g.fillStyle = color; g.lineWidth = wide;
  g.beginPath(); g.moveTo(x1, y1); g.bezierCurveTo(x1 + bend, y1 + turn, x2 - bend, y2 - turn, x2 - 5, y2); g.stroke();
  g.beginPath(); g.moveTo(x2, y2); g.lineTo(x2 - 7, y2 - 3.5); g.lineTo(x2 - 7, y2 + 3.5); g.fill();
}
function drawArrow(g, a, width, color, wide) {
  if (rowOf[a.from] < 0 || rowOf[a.to] < 0) return;
  arrow(g, across(end[a.from], width), middleOf(a.from), across(end[a.to], width), middleOf(a.to), color, wide);
}
function near(a, low, high) {  // whether any part of it may be seen
  const one = rows[rowOf[a.from]], other = rows[rowOf[a.to]];
  return one && other && Math.max(one.y, other.y) >= low && Math.min(one.y, other.y) <= high;
}

// Arrows between the same two rows that would lie on each other are drawn once, so that a thicket stays readable.
function drawArrows(g, width, height) {
  const lasts = new Map();
  let low = 0, high = arrows.length, drawn = 0;
  while (low < high) { const mid = (low + high) >> 1; if (end[arrows[mid].to] < view[0]) low = mid + 1; else high = mid; }
  for (let n = low; n < arrows.length && drawn < MOST_ARROWS; n++) {
    const a = arrows[n];
    if (end[a.from] > view[1]) { if (begin[a.to] > view[1]) break; continue; }
    if (!near(a, scroll, scroll + height) || hits && !hits[a.to] && !hits[a.from]) continue;
    const x = across(end[a.to], width), key = rowOf[a.from] * 65536 + rowOf[a.to];
    if (x - (lasts.get(key) ?? -99) < 9) continue;
    lasts.set(key, x); drawn++;
    drawArrow(g, a, width, a.kind === "sync" ? colors.sync : colors.soft, 1.1);
  }
}

function drawLaunches(g, width, height) {
  const lasts = new Map();
  let drawn = 0;
  g.globalAlpha = 0.55;
  for (const row of visibleRows(height)) {
    if (row.type !== "stream") continue;
    const list = row.list;
    for (let n = firstAfter(list, view[0]); n < list.length && begin[list[n]] <= view[1] && drawn < MOST_ARROWS; n++) {
      const i = list[n], cause = columns.cause[i], x = across(begin[i], width);
      if (cause < 0 || kindOf(i) === "wait" || x - (lasts.get(row.y) ?? -99) < 9) continue;
      lasts.set(row.y, x); drawn++;
      arrow(g, across(end[cause], width), middleOf(cause), x, middleOf(i), colors.give, 1);
    }
  }
  g.globalAlpha = 1;
}

// The critical path: a line beneath each of its bars. Those thinner than a pixel share one.
let critical = null;
function drawPath(g, width, height) {
  critical ||= criticalPath();
  g.fillStyle = colors.ink;
  for (const row of visibleRows(height)) {
    const list = critical.inRow.get(rows.indexOf(row)) || [], y = topOf(row) + row.height - 4.5;
    for (let n = firstAfter(list, view[0]); n < list.length && begin[list[n]] <= view[1];) {
      const x0 = across(critical.since.get(list[n]), width), x1 = across(end[list[n]], width);
      g.fillRect(x0, y, Math.max(x1 - x0, 1), 3);
      n = x1 - x0 < 1 ? firstAfter(list, timeAt(Math.floor(x0) + 1, width), n + 1) : n + 1;
    }
  }
}

// What belongs to the slice under the mouse, and to the selected one.
function drawFocus(g, width) {
  for (const [i, wide] of [[selected, 2], [hovered, 1.6]]) {
    if (i < 0 || rowOf[i] < 0) continue;
    for (const a of [...waitedFor(i), ...(arrowsFrom.get(i) || [])]) drawArrow(g, a, width, colors.accent, wide);
    const cause = columns.cause[i], x = across(begin[i], width);
    if (cause >= 0) arrow(g, across(end[cause], width), middleOf(cause), x, middleOf(i), colors.give, wide);
    for (const j of given.get(i) || []) arrow(g, across(end[i], width), middleOf(i), across(begin[j], width), middleOf(j), colors.give, wide);
    outline(g, i, width, colors.accent, wide);
  }
}
function outline(g, i, width, color, wide) {
  const row = rows[rowOf[i]], x0 = across(begin[i], width), x1 = Math.max(across(end[i], width), x0 + 2);
  g.strokeStyle = color; g.lineWidth = wide;
  g.beginPath(); g.roundRect(x0 - 1, topOf(row) + 3, x1 - x0 + 1.5, row.height - 6, 4); g.stroke();
}

function drawRaces(g, width) {
  data.races.forEach((race, n) => {
    const [a, b] = race.sides.map(side => side.slice), seen = [a, b].filter(i => i >= 0);
    if (!seen.length || seen.every(i => end[i] < view[0]) || seen.every(i => begin[i] > view[1])) return;
    for (const i of [a, b]) if (i >= 0 && rowOf[i] >= 0) outline(g, i, width, colors.bad, 2.4);
    if (a < 0 || b < 0 || rowOf[a] < 0 || rowOf[b] < 0) return;
    const [ta, tb] = nearest(a, b), xa = across(ta, width), xb = across(tb, width), half = [a, b].map(i => rows[rowOf[i]].height / 2 - 4);
    const down = Math.sign(middleOf(b) - middleOf(a)), ya = middleOf(a) + down * half[0], yb = middleOf(b) - down * half[1];
    g.strokeStyle = colors.bad; g.lineWidth = 1.8; g.setLineDash([5, 3]);
    g.beginPath(); g.moveTo(xa, ya); g.lineTo(xb, yb); g.stroke(); g.setLineDash([]);
    const part = 0.3 + 0.08 * (n % 6), x = xa + (xb - xa) * part, y = ya + (yb - ya) * part;  // races of one pair of lanes lie on each other
    g.fillStyle = colors.bad; g.beginPath(); g.arc(x, y, 8.5, 0, 7); g.fill();
    g.fillStyle = "#fff"; g.font = `650 11px ${FONT}`; g.textAlign = "center"; g.fillText(n + 1, x, y + 0.5);
  });
}
function nearest(a, b) {  // the closest times of two slices: within both, or the ends that face each other
  const from = Math.max(begin[a], begin[b]), to = Math.min(end[a], end[b]);
  if (from <= to) return [(from + to) / 2, (from + to) / 2];
  return end[a] < begin[b] ? [end[a], begin[b]] : [begin[a], end[b]];
}

// -- ruler, overview, scrollbar
function ticks(from, to, room) {
  const raw = (to - from) / Math.max(room / 110, 1), power = Math.pow(10, Math.floor(Math.log10(Math.max(raw, 1)))), found = [];
  const step = power * ([1, 2, 5, 10].find(m => m * power >= raw) || 10);
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push([t, moment(t, step)]);
  return found;
}
function drawRuler(g, width, height) {
  g.fillStyle = colors.paper; g.fillRect(0, 0, width, RULER);
  g.font = `11.5px ${FONT}`; g.textAlign = "center"; g.textBaseline = "middle";
  for (const [t, text] of ticks(view[0], view[1], width - LEFT)) {
    const x = Math.round(across(t, width)) + 0.5;
    g.strokeStyle = colors.line; g.lineWidth = 1; g.globalAlpha = 0.8;
    g.beginPath(); g.moveTo(x, RULER - 6); g.lineTo(x, height); g.globalCompositeOperation = isDark() ? "lighten" : "darken"; g.stroke();
    g.globalCompositeOperation = "source-over"; g.globalAlpha = 1;
    g.fillStyle = colors.soft; g.fillText(text, Math.min(Math.max(x, LEFT + 4), width - 26), 11);
  }
  g.strokeStyle = colors.edge; g.beginPath(); g.moveTo(LEFT, RULER - 0.5); g.lineTo(width - RIGHT, RULER - 0.5); g.stroke();
  if (cursor !== null && cursor >= LEFT) {
    g.strokeStyle = colors.accent; g.globalAlpha = 0.5; g.beginPath(); g.moveTo(cursor + 0.5, RULER); g.lineTo(cursor + 0.5, height); g.stroke(); g.globalAlpha = 1;
    const text = moment(timeAt(cursor, width), perPixelOf(width)), half = g.measureText(text).width / 2 + 6, x = Math.min(Math.max(cursor, LEFT + half), width - half - 2);
    g.fillStyle = colors.accent; g.beginPath(); g.roundRect(x - half, 2, 2 * half, 18, 4); g.fill();
    g.fillStyle = isDark() ? "#0f131a" : "#fff"; g.fillText(text, x, 11.5);
  }
  g.textAlign = "left"; g.fillStyle = colors.soft; g.fillText(data.simulated && LEFT > 130 ? "simulated time" : "time", 12, 11);
}
function drawScrollbar(g, width, height) {
  const room = height - RULER, all = tall + 4;
  if (all <= room) return;
  const length = Math.max(room * room / all, 24), y = RULER + scroll / (all - room) * (room - length);
  g.fillStyle = colors.edge; g.beginPath(); g.roundRect(width - 7, y, 6, length, 3); g.fill();
}

let backdrop = null;
function drawOverview() {
  const canvas = $("overview"), [g, width, height] = fit(canvas, 46);
  if (!backdrop || backdrop.width !== canvas.width) backdrop = overview(canvas.width, canvas.height, width, height);
  g.fillStyle = colors.lane; g.fillRect(LEFT, 0, width - LEFT - RIGHT, height);
  g.drawImage(backdrop, 0, 0, width, height);
  const to = t => LEFT + (t - whole[0]) / (whole[1] - whole[0]) * (width - LEFT - RIGHT), x0 = Math.max(to(view[0]), LEFT), x1 = Math.min(Math.max(to(view[1]), x0 + 3), width - RIGHT);
  g.fillStyle = colors.paper; g.globalAlpha = 0.62; g.fillRect(LEFT, 0, x0 - LEFT, height); g.fillRect(x1, 0, width - RIGHT - x1, height); g.globalAlpha = 1;
  g.strokeStyle = colors.accent; g.lineWidth = 1.5; g.strokeRect(x0 + 0.7, 0.7, x1 - x0 - 1.4, height - 1.4);
}
function overview(pixels, tallPixels, width, height) {
  const canvas = document.createElement("canvas"), shown = rows.filter(row => row.type === "stream" || row.type === "host"), room = width - LEFT - RIGHT;
  canvas.width = pixels; canvas.height = tallPixels;
  const g = canvas.getContext("2d"), high = (height - 8) / Math.max(shown.length, 1), perPixel = (whole[1] - whole[0]) / room;
  g.scale(pixels / width, tallPixels / height);
  shown.forEach((row, r) => {
    for (let n = 0; n < row.list.length;) {
      const i = row.list[n], x = (begin[i] - whole[0]) / perPixel;
      if (kindOf(i) !== "wait") { g.fillStyle = colorOf(i); g.fillRect(LEFT + x, 4 + r * high, Math.max(columns.length[i] / perPixel, 0.8), Math.max(high - 0.6, 0.7)); }
      n = firstAfter(row.list, whole[0] + (Math.floor(x) + 1) * perPixel, n + 1);
    }
  });
  g.fillStyle = colors.bad;
  for (const race of data.races) for (const side of race.sides) if (side.slice >= 0) g.fillRect(LEFT + (begin[side.slice] - whole[0]) / perPixel - 1, 0, 2.5, height);
  return canvas;
}
