// Fails when the files of the first load are larger than a browser on a slow line should have to wait for.
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';

const mostFirst = 150_000;
const assets = join(process.argv[2] ?? 'dist', 'assets');
const size = (name) => gzipSync(readFileSync(join(assets, name)), { level: 9 }).length;
const scripts = readdirSync(assets).filter((name) => name.endsWith('.js'));
// Everything the entry imports statically is loaded with it; what it imports on demand is not.
const first = new Set(['app.js']);
for (const name of first) {
  const text = readFileSync(join(assets, name), 'utf8');
  for (const match of text.matchAll(/(?:^|[;}\n])\s*(?:import|export)\s*(?:[^"'()]*?from\s*)?["']\.\/([^"']+\.js)["']/g)) first.add(match[1]);
}
const sum = (names) => [...names].reduce((total, name) => total + size(name), 0);
const loaded = sum(first);
console.log(`first load ${loaded} bytes of JavaScript under gzip (${[...first].join(', ')}), at most ${mostFirst}; all ${sum(scripts)}; styles ${size('app.css')}`);
if (loaded > mostFirst) {
  console.error(`the first load is larger than ${mostFirst} bytes`);
  process.exit(1);
}
