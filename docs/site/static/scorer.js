// The order of search results: pages of the course first, the earlier ones a little before the later ones.
var Scorer = {
  score: ([page, , anchor, , score]) => {
    const course = page.match(/^notebooks\/(\d\d)_/);
    const place = course ? 20 - 0.4 * Number(course[1]) : page.startsWith("api/") ? -10 : 0;
    return score + place - (anchor ? 5 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
