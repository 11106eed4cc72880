// Sphinx's scores, and above them a heading that holds what was asked for, word by word.
var asked = (new URLSearchParams(location.search).get("q") ?? "").trim().toLowerCase();

var Scorer = { // a variable, which the search declares once more
  score: ([, title, , , score]) => score + (asked && title.toLowerCase().includes(asked) ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
