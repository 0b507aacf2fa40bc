// SHA-256 (FIPS 180-4). The browser has its own only for pages that came over TLS or from this machine, which a console often did not.

const primes = [2];
for (let n = 3; primes.length < 64; n += 2) if (primes.every((prime) => n % prime)) primes.push(n);
/** The first 32 bits behind the point. */
const fraction = (x: number) => Math.floor((x - Math.floor(x)) * 2 ** 32) | 0;
const constants = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
const start = primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const turned = (x: number, by: number) => (x >>> by) | (x << (32 - by));

/** The hash of some bytes in hexadecimal, as sha256sum prints it. */
export function sha256(data: Uint8Array): string {
  const padded = new Uint8Array((((data.length + 8) >> 6) + 1) << 6);
  padded.set(data);
  padded[data.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(data.length / 2 ** 29));
  view.setUint32(padded.length - 4, data.length << 3);
  const hash = Int32Array.from(start);
  const words = new Int32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let i = 0; i < 16; i++) words[i] = view.getInt32(block + 4 * i);
    for (let i = 16; i < 64; i++) {
      const [early, late] = [words[i - 15]!, words[i - 2]!];
      words[i] = words[i - 16]! + (turned(early, 7) ^ turned(early, 18) ^ (early >>> 3)) + words[i - 7]! + (turned(late, 17) ^ turned(late, 19) ^ (late >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = hash as unknown as [number, number, number, number, number, number, number, number];
    for (let i = 0; i < 64; i++) {
      const first = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + constants[i]! + words[i]!) | 0;
      const second = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => (hash[i] = hash[i]! + value));
  }
  return [...hash].map((word) => (word >>> 0).toString(16).padStart(8, '0')).join('');
}
