// A copy button beside every command. Without scripts the commands are plain text to select.
(function () {
  "use strict";
  function select(node) {
    var range = document.createRange();
    range.selectNodeContents(node);
    var selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }
  function copy(node) {
    if (navigator.clipboard && window.isSecureContext) {
      return navigator.clipboard.writeText(node.textContent);
    }
    select(node);
    return document.execCommand("copy") ? Promise.resolve() : Promise.reject(new Error("copy"));
  }
  document.querySelectorAll(".cmd").forEach(function (command) {
    var code = command.querySelector("code");
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the command " + code.textContent.slice(0, 80));
    button.addEventListener("click", function () {
      copy(code).then(function () { button.textContent = "Copied"; },
        function () { select(code); button.textContent = "Ctrl+C"; });
      setTimeout(function () { button.textContent = "Copy"; }, 1500);
    });
    command.appendChild(button);
  });
})();
