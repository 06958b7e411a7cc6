// Package gpu knows the machine's GPUs. An Inventory lists them; this version has only the one of a machine without any.
package gpu

import "context"

// Device is one card, or one MIG device of a card.
type Device struct {
	Index  int
	UUID   string // GPU-... or MIG-...
	Name   string
	Memory int64 // bytes
}

// Inventory lists the devices that workers may be placed on.
type Inventory interface {
	Devices(ctx context.Context) ([]Device, error)
}

// None is the inventory of a machine without GPUs.
type None struct{}

var _ Inventory = None{}

// Devices returns no device.
func (None) Devices(context.Context) ([]Device, error) { return nil, nil }
