import { expect, it } from 'vitest';
import { writes } from './writes';

const sources = import.meta.glob<string>(['../**/*.svelte', '../**/*.ts', '!../**/*.test.ts'], { query: '?raw', import: 'default', eager: true });
const lines = Object.entries(sources).flatMap(([file, text]) => text.split('\n').map((line) => ({ file: file.replace(/^.*\//, ''), line: line.trim() })));

it('changes nothing but through Write', () => {
  const changing = lines.filter(({ file, line }) => file !== 'Write.svelte' && /\bmethod: ?['"`](POST|PUT|PATCH|DELETE)/.test(line) && !line.includes('dryRun: true'));
  // A purge that was confirmed goes on until it is done.
  expect(changing.map((one) => one.file)).toEqual(['Danger.svelte']);
  expect(lines.filter(({ line }) => /\bfetch\(/.test(line)).map((one) => one.file).sort()).toEqual(['api.ts', 'tail.svelte.ts']);
});

it('names every change once, and uses each name', () => {
  expect(new Set(writes).size).toBe(writes.length);
  const text = lines.filter(({ file }) => file !== 'writes.ts').map((one) => one.line).join('\n');
  const named = writes.filter((name) => !text.includes(`'${name}'`) && !text.includes(`"${name}"`));
  expect(named).toEqual([]);
});
