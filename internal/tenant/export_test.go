package tenant

// Tracked is the number of tenants in memory.
func (m *Meter) Tracked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.tenants)
}
