// Where VS Code begins the tests that run in its extension host: those of exthost/, each with no session left over.

const path = require("node:path");
const { forget, over, plan } = require("./session");
const { runTables } = require("./table");

exports.run = async () => {
  const tables = plan.themes.map((theme) => [theme, require(path.join(__dirname, "exthost", theme)).tests]);
  await runTables(tables, plan.result, async (test) => {
    forget();
    try {
      await test();
    } finally {
      await over();
    }
  });
};
