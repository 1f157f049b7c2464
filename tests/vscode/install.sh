#!/usr/bin/env bash
# Installs VS Code for a browser (code-server) and the driver of the browser into node_modules/ beside this file.
# Needs Node.js 20, npm and a C++ compiler; Chromium and ripgrep come from the system.
set -euo pipefail
cd "$(dirname "$0")"

# The post-install scripts of all packages would download too much: the required ones are run below.
npm ci --ignore-scripts
prefix=$(dirname "$(dirname "$(command -v node)")")
[ -f "$prefix/include/node/node.h" ] && export npm_config_nodedir="$prefix"
npm rebuild argon2

cd node_modules/code-server/lib/vscode
npm install --ignore-scripts --omit=dev --no-package-lock --no-audit --no-fund
ln -sfn node_modules node_modules.asar
# node-pty builds with `npx node-gyp`, which needs a confirmation to install packages.
npm_config_yes=true npm rebuild @vscode/spdlog node-pty native-watchdog @parcel/watcher
mkdir -p node_modules/@vscode/ripgrep/bin
ln -sfn "$(command -v rg)" node_modules/@vscode/ripgrep/bin/rg
touch ../../../../node_modules/.installed
