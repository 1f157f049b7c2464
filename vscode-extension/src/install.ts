// What the install button runs.  No file of a workspace may stand in for pip, and no name is installed
// that the user has not chosen: the name nncdbg is not registered on the Python Package Index yet.

import { homedir } from "node:os";

export interface Terminal {
  name: string;
  shellPath: string;
  shellArgs: string[];
  cwd: string;
}

/** Isolated from the folder, from PYTHONPATH and the user's own packages (`-I`), and outside of any workspace. */
export function installTerminal(python: string, requirement: string): Terminal {
  const shellArgs = ["-I", "-m", "pip", "install", requirement];
  return { name: `Install ${requirement}`, shellPath: python, shellArgs, cwd: homedir() };
}

/** What pip gets: the setting as it is; a requirement by name must not be read as an option of pip. */
export function requirementOf(setting: string | undefined): string | undefined {
  const requirement = setting?.trim();
  return requirement && !requirement.startsWith("-") ? requirement : undefined;
}
