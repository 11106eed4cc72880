// This page had the verdicts once: a link to one of them, or to a heading that stood here, leads to where it is now.
const moved = { "the-tests-that-need-a-gpu": "../site/card_tests.html", "the-way-through": "../site/reading.html" };
document.addEventListener("DOMContentLoaded", () => {
  const name = location.hash.slice(1);
  if (name && !document.getElementById(name)) location.replace(moved[name] ?? `24_all_verdicts.html#${name}`);
});
