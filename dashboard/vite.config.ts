import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';

// Names of built files are stable, so that two branches do not add different files; the broker caches by content.
export default defineConfig({
  plugins: [svelte()],
  base: './',
  build: {
    target: 'es2022',
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    sourcemap: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: 'assets/app.js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: (asset) => (asset.names[0]?.endsWith('.css') ? 'assets/app.css' : 'assets/[name][extname]'),
      },
    },
  },
  server: {
    // `npm run dev` beside a running broker.
    proxy: Object.fromEntries(
      ['/api', '/auth', '/streams/', '/readyz', '/health', '/metrics', '/openapi.json'].map((path) => [path, 'http://127.0.0.1:6632']),
    ),
  },
  test: { environment: 'node', include: ['src/**/*.test.ts'] },
});
