// Tables of tests, `{ name: async function }`, run one after the other; how each went is written down as it ends.

const fs = require("node:fs");

const LIMIT = 180_000;

function within(limit, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${limit / 1000} s`)), limit);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** `tables`: [theme, tests] pairs.  `run(test, theme)` is to run one of them; its results go to the file `result`. */
exports.runTables = async (tables, result, run) => {
  const results = [];
  for (const [theme, tests] of tables) {
    for (const [name, test] of Object.entries(tests)) {
      const began = Date.now();
      let error;
      try {
        await within(LIMIT, run(test, theme));
      } catch (caught) {
        error = caught.stack;
      }
      results.push({ theme, name, milliseconds: Date.now() - began, error });
      fs.writeFileSync(`${result}.part`, JSON.stringify(results, null, 1));
    }
  }
  fs.renameSync(`${result}.part`, result);
};
