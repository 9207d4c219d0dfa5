// Replaces the parts of a transfer's page when the server sends a change. The server renders them, as
// it rendered the page, so that there is only one way to show them.
"use strict";

const live = document.getElementById("live");
const source = new EventSource(live.dataset.events);

function say(text, state) {
  live.textContent = text;
  live.dataset.state = state;
}

source.addEventListener("open", () => {
  say("Live: each step is shown as it is taken.", "on");
});

source.addEventListener("part", (event) => {
  const { name, html } = JSON.parse(event.data);
  document.getElementById(name).innerHTML = html;
});

source.addEventListener("end", () => {
  source.close();
  say("This transfer has ended.", "done");
});

source.addEventListener("error", () => {
  if (source.readyState === EventSource.CLOSED) {
    say("Not live any more. Reload this page for news.", "off");
  } else {
    say("The bank does not answer; trying again.", "off");
  }
});

window.addEventListener("pagehide", () => source.close());
