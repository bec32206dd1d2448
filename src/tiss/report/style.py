"""The page's style sheet: light and dark, nothing loaded from elsewhere."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #fdfdfc; --card: #f3f3f0; --ink: #1c1c1a; --soft: #5d5d58;
  --line: #d9d9d3; --good: #00694d; --bad: #b04a00; --part: #7a5c00; --best: #00694d; }
@media (prefers-color-scheme: dark) { :root { --ground: #161715; --card: #212320; --ink: #e9e9e4;
  --soft: #a3a39b; --line: #3a3c38; --good: #5fd0aa; --bad: #ff9d5c; --part: #e3c05a; --best: #5fd0aa; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0 1rem; }
h2 { font-size: 1.05rem; font-weight: 500; color: var(--soft); margin: 2rem 0 .75rem; }
h4 { font-size: .95rem; font-weight: 500; margin: .8rem 0 .3rem; }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.note, footer, caption { color: var(--soft); font-size: .84rem; }
.note { margin: .2rem 0; }
.hero { background: var(--card); border-radius: 10px; padding: 1.1rem 1.3rem; margin-bottom: 1.5rem; }
.hero p { margin: .1rem 0; }
.hero .good, .hero .bad, .hero .part, .hero .bound { font-size: 1.28rem; font-weight: 600; line-height: 1.35; }
.hero .good { color: var(--good); }
.hero .bad { color: var(--bad); }
.hero .part { color: var(--part); }
.hero .bound { color: var(--soft); font-size: 1.02rem; font-weight: 500; }
.hero .note { margin: .5rem 0 .9rem; }
.strip { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: 0; text-align: center; }
figcaption { font-size: .84rem; }
img { display: block; width: 100%; height: auto; image-rendering: pixelated; border-radius: 3px;
  outline: 1px solid var(--line); }
.mask { position: relative; }
.mask b { position: absolute; transform: translate(-50%, -50%); color: #fff; font: 600 10px/1 sans-serif;
  text-shadow: 0 0 2px #000, 0 0 2px #000, 0 0 3px #000; white-space: nowrap; }
.strip figure { width: 132px; }
.scroll { overflow-x: auto; container-type: inline-size; }
.scroll th, .scroll td { font-size: clamp(12px, 1.13cqi, 13.8px); }
.scroll thead th { white-space: normal; vertical-align: bottom; }
.scroll th.label:first-child { position: sticky; left: 0; background: var(--ground); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .4rem 0; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .22rem .42rem; text-align: right; white-space: nowrap; font-size: .92rem; }
th { font-weight: 500; }
thead th { border-bottom: 1px solid var(--line); color: var(--soft); font-size: .88rem; }
thead th[colspan] { text-align: center; border-bottom: 0; border-left: 1px solid var(--line); }
thead th[colspan]:first-child { border-left: 0; }
th.label { text-align: left; }
tr.rule > * { border-top: 1px solid var(--line); }
td.best { font-weight: 700; color: var(--best); }
td.second { text-decoration: underline; text-underline-offset: 3px; }
.figures { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.figure { overflow-x: auto; }
.figure svg { max-width: 100%; height: auto; color: var(--ink); }
.pictures { display: flex; flex-wrap: wrap; gap: 1.2rem; }
.picture { display: flex; gap: .8rem; background: var(--card); border-radius: 10px; padding: .8rem; }
.given { display: flex; flex-direction: column; gap: .5rem; }
.given figure, .masks td { width: 92px; }
.masks { margin: 0; }
.masks th, .masks td { padding: .15rem .25rem; border: 0; }
.masks td, .masks thead th { text-align: center; }
.masks th.label { padding-right: .5rem; font-size: .9rem; vertical-align: middle; }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: .3rem .9rem; font-size: .9rem; }
.legend .step { color: var(--soft); margin-left: .6rem; }
.chip i { display: inline-block; width: .85em; height: .85em; border-radius: 3px; margin-right: .35em;
  vertical-align: -.06em; border: 1px solid var(--line); }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
pre { background: var(--card); border-radius: 8px; padding: .8rem; overflow-x: auto; font-size: .8rem; }
"""
