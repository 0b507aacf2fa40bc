import { expect, it } from 'vitest';
import { sha256 } from './sha256';

it.each([0, 1, 3, 55, 56, 57, 63, 64, 65, 119, 120, 1000, 100_000])('the hash of %d bytes is that of others', async (length) => {
  const data = Uint8Array.from({ length }, (_, i) => (i * 31 + length) & 255);
  const other = new Uint8Array(await crypto.subtle.digest('SHA-256', data));
  expect(sha256(data)).toBe([...other].map((byte) => byte.toString(16).padStart(2, '0')).join(''));
});

it('abc', () => expect(sha256(new TextEncoder().encode('abc'))).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'));
