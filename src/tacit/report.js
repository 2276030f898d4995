"use strict";
(function () {
  var panel = document.getElementById("try");
  if (!panel) return;
  var run = { epsilon: Number(panel.dataset.epsilon), delta: Number(panel.dataset.delta), prior: Number(panel.dataset.prior) };
  var find = function (id) { return document.getElementById(id); };
  var epsilonSlider = find("epsilon"), priorSlider = find("prior");

  // Printed bounds are rounded up, never down, to three digits.
  function up(value) {
    if (!isFinite(value)) return "any";
    if (value === 0) return "0";
    var place = Math.floor(Math.log10(Math.abs(value))) - 2;
    var scale = Math.pow(10, -place);
    var rounded = Math.ceil(value * scale - 1e-9) / scale;
    return String(Number(rounded.toPrecision(3)));
  }
  function percent(value) { return up(Math.min(100, 100 * value)) + "%"; }
  function odds(value) {
    if (value >= 1) return up(value) + " to 1";
    var scale = Math.pow(10, 2 - Math.floor(Math.log10(1 / value)));
    return "1 to " + String(Number((Math.floor(scale / value + 1e-9) / scale).toPrecision(3)));
  }
  function believed(prior, epsilon) { return prior / (prior + (1 - prior) * Math.exp(-epsilon)); }

  function curve(epsilon, delta) {
    var points = [];
    for (var i = 0; i <= 200; i++) {
      var fpr = i / 200;
      var tpr = Math.min(1, delta + Math.exp(epsilon) * fpr, 1 - Math.exp(-epsilon) * (1 - delta - fpr));
      points.push((LEFT + SIZE * fpr).toFixed(1) + "," + (TOP + SIZE * (1 - tpr)).toFixed(1));
    }
    return points.join(" ");
  }

  function show() {
    var epsilon = Math.pow(10, Number(epsilonSlider.value));
    var logit = Number(priorSlider.value);
    if (Number(epsilonSlider.value) === start.epsilon) epsilon = run.epsilon;
    var prior = logit === start.prior ? run.prior : 1 / (1 + Math.exp(-logit));
    var after = believed(prior, epsilon);
    find("epsilon-value").value = up(epsilon);
    find("prior-value").value = percent(prior) + " (odds " + odds(prior / (1 - prior)) + ")";
    epsilonSlider.setAttribute("aria-valuetext", "epsilon " + up(epsilon));
    priorSlider.setAttribute("aria-valuetext", percent(prior));
    find("before").textContent = percent(prior);
    find("after").textContent = percent(after);
    find("before-bar").style.width = 100 * prior + "%";
    find("after-bar").style.width = 100 * after + "%";
    find("said").textContent = "At ε = " + up(epsilon) + " a belief of " + percent(prior) + " becomes at most " +
      percent(after) + "; odds of " + odds(prior / (1 - prior)) + " become at most " +
      odds(prior / (1 - prior) * Math.exp(epsilon)) + ".";
    find("any").setAttribute("points", curve(epsilon, run.delta));
    find("any-tag").textContent = "any (ε = " + up(epsilon) + ", δ)";
  }

  function fromAddress() {
    var given = new URLSearchParams(location.hash.slice(1));
    if (given.has("epsilon")) epsilonSlider.value = Math.log10(Number(given.get("epsilon")));
    if (given.has("prior")) priorSlider.value = Math.log(Number(given.get("prior")) / (1 - Number(given.get("prior"))));
    show();
  }

  epsilonSlider.value = Math.log10(run.epsilon);
  priorSlider.value = Math.log(run.prior / (1 - run.prior));
  // Where the slider stands for this run; it has steps, so it may stand a little beside the number.
  var start = { epsilon: Number(epsilonSlider.value), prior: Number(priorSlider.value) };
  epsilonSlider.addEventListener("input", show);
  priorSlider.addEventListener("input", show);
  find("reset").addEventListener("click", function () {
    epsilonSlider.value = start.epsilon;
    priorSlider.value = start.prior;
    show();
  });
  window.addEventListener("hashchange", fromAddress);
  find("sliders").hidden = find("back").hidden = false;
  fromAddress();
})();
