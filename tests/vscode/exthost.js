// Entry point of the tests in VS Code's extension host: runs one file of exthost/, each test without an earlier session.

const path = require("node:path");
const { forget, endSession, plan } = require("./session");
const { runTable } = require("./table");

exports.run = () =>
  runTable(require(path.join(__dirname, plan.theme)).tests, plan.result, async (test) => {
    forget();
    try {
      await test();
    } finally {
      await endSession();
    }
  });
