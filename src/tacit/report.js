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
    var rounded = Math.ceil(value * scale * (1 - 1e-12)) / scale;
    return String(Number(rounded.toPrecision(3)));
  }
  function percent(value) { return up(Math.min(100, 100 * value)) + "%"; }
  function odds(value) {
    if (value >= 1) return up(value) + " to 1";
    var scale = Math.pow(10, 2 - Math.floor(Math.log10(1 / value)));
    return "1 to " + String(Number((Math.floor(scale / value * (1 + 1e-12)) / scale).toPrecision(3)));
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
    var before = now.prior / (1 - now.prior), after = believed(now.prior, now.epsilon);
    find("epsilon-value").value = up(now.epsilon);
    find("prior-value").value = percent(now.prior) + " (odds " + odds(before) + ")";
    epsilonSlider.setAttribute("aria-valuetext", "epsilon " + up(now.epsilon));
    priorSlider.setAttribute("aria-valuetext", percent(now.prior));
    find("before").textContent = percent(now.prior);
    find("after").textContent = percent(after);
    find("before-bar").style.width = 100 * now.prior + "%";
    find("after-bar").style.width = 100 * after + "%";
    find("said").textContent = "At ε = " + up(now.epsilon) + " a belief of " + percent(now.prior) +
      " becomes at most " + percent(after) + "; odds of " + odds(before) + " become at most " +
      odds(before * Math.exp(now.epsilon)) + ".";
    find("any").setAttribute("points", curve(now.epsilon, run.delta));
    find("any-tag").textContent = "any (ε = " + up(now.epsilon) + ", δ)";
  }

  // The sliders have steps; what is shown is the number itself, until a slider is moved.
  function set(epsilon, prior) {
    now = { epsilon: epsilon, prior: prior };
    epsilonSlider.value = Math.log10(epsilon);
    priorSlider.value = Math.log(prior / (1 - prior));
    show();
  }

  // The address may say what to show: report.html#epsilon=2&prior=0.5
  function fromAddress() {
    var given = new URLSearchParams(location.hash.slice(1));
    var epsilon = Number(given.get("epsilon")), prior = Number(given.get("prior"));
    set(epsilon > 0 ? epsilon : run.epsilon, prior > 0 && prior < 1 ? prior : run.prior);
  }

  var now;
  epsilonSlider.addEventListener("input", function () {
    now.epsilon = Math.pow(10, Number(epsilonSlider.value));
    show();
  });
  priorSlider.addEventListener("input", function () {
    now.prior = 1 / (1 + Math.exp(-Number(priorSlider.value)));
    show();
  });
  find("reset").addEventListener("click", function () { set(run.epsilon, run.prior); });
  window.addEventListener("hashchange", fromAddress);
  find("sliders").hidden = find("back").hidden = false;
  fromAddress();
})();
