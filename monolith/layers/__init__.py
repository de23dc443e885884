"""The few dense layers that ranking models need."""
