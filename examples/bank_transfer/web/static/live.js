// Puts the parts of a transfer's page anew where the server says that they have changed. The server
// makes them, as it made the page: here is no second way to show them.
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
  say("This is all of it: nothing more happens to this transfer.", "done");
});

source.addEventListener("error", () => {
  if (source.readyState === EventSource.CLOSED) {
    say("Not live any more. Reload this page to see more.", "off");
  } else {
    say("The bank does not answer; asking again.", "off");
  }
});

window.addEventListener("pagehide", () => source.close());
