import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { preferences } from './lib/preferences.svelte';
import { ticker } from './lib/ticker.svelte';

preferences.apply();
ticker.start();
mount(App, { target: document.getElementById('app')! });
