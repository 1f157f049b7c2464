// The licences of the packages that a bundle contains: they ask to stand beside every copy.

import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";

/** The folders of the packages among the inputs of esbuild's metafiles. */
function packages(metafiles) {
  const folder = /^node_modules\/(?:@[^/]+\/)?[^/]+/;
  const inputs = metafiles.flatMap((metafile) => Object.keys(metafile.inputs));
  return [...new Set(inputs.flatMap((input) => input.match(folder) ?? []))].sort();
}

/** One text with name, version and licence of each package.  Throws where one has no licence file. */
export function notices(metafiles) {
  return packages(metafiles)
    .map((folder) => {
      const { name, version } = JSON.parse(readFileSync(path.join(folder, "package.json"), "utf8"));
      const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
      if (file === undefined) {
        throw new Error(`${name} has no licence file`);
      }
      return `${name} ${version}\n\n${readFileSync(path.join(folder, file), "utf8").trim()}\n`;
    })
    .join(`\n${"-".repeat(80)}\n\n`);
}
