// Internal: what the scripts of all reports draw with.
#pragma once

namespace tessera::cli {

inline constexpr const char* kReportTools = R"script('use strict';
const data = JSON.parse(document.querySelector('script[type="application/json"]').textContent);
const at = id => document.getElementById(id);

// Elements; text goes in as text, never as markup.
function make(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  for (const child of [].concat(children === undefined ? [] : children)) node.append(child);
  return node;
}
const tag = (name, attributes, children) => make(document.createElement(name), attributes, children);
const shape = (name, attributes, children) => make(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

// Numbers with units, three digits.
const digits = value => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
function seconds(value) {
  const size = Math.abs(value), sign = value < 0 ? '−' : '';
  return sign + (size === 0 ? '0\u00a0s' : size < 1e-3 ? digits(size * 1e6) + '\u00a0µs' : size < 1 ? digits(size * 1e3) + '\u00a0ms' : digits(size) + '\u00a0s');
}
function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  while (value >= 1024 && i + 1 < units.length) { value /= 1024; ++i; }
  return (i ? digits(value) : value) + '\u00a0' + units[i];
}
const percent = value => (100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0) + '\u00a0%';
const plural = (count, word) => count + ' ' + word + (count === 1 ? '' : word.endsWith('ch') ? 'es' : 's');

const palette = ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00', '#F0E442', '#999999'];
const dark = ['#0072B2', '#D55E00', '#009E73', '#6b6b6b'];
const inkOn = colour => dark.includes(colour) ? '#fff' : '#111';
const colourOf = (known, name) => known[name] || palette[[...name].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % palette.length];

function legend(list, entries) {
  list.replaceChildren(...entries.map(([name, colour]) => tag('li', {}, [tag('i', {style: 'background:' + colour}), name])));
}
// Columns: [title, is a number].
function table(columns, rows, caption) {
  const cell = (name, i, value) => tag(name, Object.assign(columns[i][1] ? {class: 'number'} : {}, name === 'th' ? {scope: 'col'} : {}), value);
  return tag('table', {class: 'wide'}, [
    ...(caption ? [tag('caption', {class: 'soft'}, caption)] : []),
    tag('thead', {}, tag('tr', {}, columns.map((column, i) => cell('th', i, column[0])))),
    tag('tbody', {}, rows.map(row => tag('tr', {}, row.map((value, i) => cell('td', i, value)))))]);
}

// Charts are drawn for the width that they have, and again when it changes.
const charts = [];
function chart(id, least, draw) {
  const place = at(id);
  const again = () => place.replaceChildren(draw(Math.max(least, place.clientWidth)));
  charts.push(again);
  again();
}
const picture = (width, height, label, children) => shape('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label}, children);
const words = (x, y, text, more) => shape('text', Object.assign({x, y}, more), text);
const tip = (node, text) => { node.append(shape('title', {}, text)); return node; };

// About `count` round numbers between two.
function ticksOf(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(f => f * power >= rough) * power, out = [];
  for (let value = Math.ceil(low / step) * step; value <= high * (1 + 1e-9); value += step) out.push(value);
  return out;
}

// Of a rank in a timeline: computation, messages, collectives; the offset and the height of each.
const lanes = [[0, 16], [18, 5], [24, 5]];
const rankHeight = 34;

// Calls the functions that draw, and again those of charts when the width changes.
function show(functions) {
  functions.forEach(draw => draw());
  let width = innerWidth;
  addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; charts.forEach(again => again()); } });
  addEventListener('beforeprint', () => { document.querySelectorAll('details').forEach(d => { d.open = d.id !== 'text'; }); charts.forEach(again => again()); });
}
)script";

}  // namespace tessera::cli
