// Who uses the console. A token lives in this module's memory only: it goes with the tab, and no storage of the browser ever has it.

export type Role = 'read-only' | 'write-only' | 'read-write' | 'admin';

interface Identity {
  role: string;
  roles?: Role[];
  user_id: string;
  standalone: boolean;
}

let token = '';

class Session {
  /** asking: not known yet; open: no tokens are asked for; out: a token is needed; in: a token is held. */
  state = $state<'asking' | 'open' | 'out' | 'in'>('asking');
  name = $state('');
  roles = $state.raw<readonly Role[]>([]);
  /** Why the last sign-in ended, for the sign-in page. */
  note = $state('');

  /** Whether the caller may change messages, queues and groups. */
  get writes(): boolean {
    return this.roles.some((role) => role === 'read-write' || role === 'admin');
  }

  get reads(): boolean {
    return this.roles.some((role) => role !== 'write-only');
  }

  get pushes(): boolean {
    return this.roles.some((role) => role !== 'read-only');
  }

  get admin(): boolean {
    return this.roles.includes('admin');
  }

  headers(): Record<string, string> {
    return token ? { Authorization: `Bearer ${token}` } : {};
  }

  accept(identity: Identity, withToken: string) {
    token = withToken;
    this.name = withToken ? identity.user_id : '';
    this.roles = identity.roles ?? [identity.role as Role];
    this.state = withToken ? 'in' : 'open';
    this.note = '';
  }

  end(note = '') {
    token = '';
    this.name = '';
    this.roles = [];
    this.state = 'out';
    this.note = note;
  }
}

export const session = new Session();
