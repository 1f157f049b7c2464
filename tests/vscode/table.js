// A table of tests, `{ name: async function }`, run one after the other; each result is written as soon as its test ends.

const fs = require("node:fs");

const LIMIT = 180_000;

function within(limit, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${limit / 1000} s`)), limit);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Runs each test by `run(test)`.  The file `result`.part has the results so far; at the end it is renamed to `result`. */
exports.runTable = async (tests, result, run) => {
  const results = [];
  for (const [name, test] of Object.entries(tests)) {
    const began = Date.now();
    let error;
    try {
      await within(LIMIT, run(test));
    } catch (caught) {
      error = caught.stack;
    }
    results.push({ name, milliseconds: Date.now() - began, error });
    fs.writeFileSync(`${result}.part`, JSON.stringify(results, null, 1));
  }
  fs.renameSync(`${result}.part`, result);
};
