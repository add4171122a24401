// The login: a token goes out as JSON, which no form of another site can send, and a cookie comes back.
import { ask } from "./console.js";

const form = document.querySelector("form[data-login]");
const failed = form.querySelector("[data-failed]");
form.hidden = false;
form.elements.token.focus();
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  const answer = await ask("POST", "/login", { token: form.elements.token.value.trim() });
  button.disabled = false;
  if (answer.ok) {
    location.replace("/");
    return;
  }
  failed.hidden = false;
  failed.textContent = answer.status === 401 ? "That token is not known here, or is no longer valid." : answer.document?.detail || answer.document?.title || "That did not work.";
  form.elements.token.select();
});
