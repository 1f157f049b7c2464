// Where VS Code begins the tests that run in its extension host: those of one file of exthost/, each without an earlier session.

const path = require("node:path");
const { forget, over, plan } = require("./session");
const { runTable } = require("./table");

exports.run = () =>
  runTable(require(path.join(__dirname, plan.theme)).tests, plan.result, async (test) => {
    forget();
    try {
      await test();
    } finally {
      await over();
    }
  });
